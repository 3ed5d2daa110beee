-- The backend refused a connect because of its rate: `RateBook::refused`.

local said = { rate = tonumber(ARGV[3]), burst = tonumber(ARGV[4]) }
notice_loss(ARGV[5], tonumber(ARGV[6]), said)
local limits = rate_limits(said)
interval(limits)
if book.halvings == 0 or now_us >= book.refused_us + TOGETHER_US then
    book.halvings = math.min(book.halvings + 1, HALVINGS_MAX)
    book.refused_us = now_us
end
-- emptied at the pace of before: the first permit afterwards is one full interval away
book.tat_us = math.max(book.tat_us, now_us + tolerance(limits) + full_interval(limits))
finish_rate()
return 1
