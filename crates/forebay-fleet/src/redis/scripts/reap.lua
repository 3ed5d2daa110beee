-- Takes a member's leases back now, at an operator's word. -1 if there is no such member, else how
-- many leases it had.

local page = known and load(ARGV[3])
if not page then return -1 end
local had = booked(page)
local news = {}
remove(page)
distribute(nil, news)
finish(news, false)
return had
