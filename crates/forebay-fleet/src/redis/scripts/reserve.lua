-- Reserves rate permits, as many as fall due within the longest wait: `RateBook::reserve`. Answers with when the first is good, from now, and the time between two.

local permits, max_wait_us = tonumber(ARGV[3]), tonumber(ARGV[4]) * 1000
local said = { rate = tonumber(ARGV[5]), burst = tonumber(ARGV[6]) }
notice_loss(ARGV[7], tonumber(ARGV[8]), said)
local limits = rate_limits(said)
local pace = interval(limits)
local tat = math.max(book.tat_us, now_us)
local lead = tat - tolerance(limits) - now_us
local left = max_wait_us - lead
permits = left < 0 and 0 or math.min(permits, math.floor(left / pace) + 1)
book.tat_us = tat + pace * permits
finish_rate()
return { lead, pace, permits }
