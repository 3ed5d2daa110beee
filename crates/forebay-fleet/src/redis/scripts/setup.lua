-- Books for a fleet that is known to be new: no window, a full bucket. 0 if there are some already.

if known then return 0 end
begin(ARGV[3])
finish({}, true)
return 1
