-- The rate of one backend, in whole microseconds: the rules of src/rate.rs.

local RECOVERY_US = 10000000
local TOGETHER_US = 1000000
local HALVINGS_MAX = 4
local HORIZON_US = 2000000
local CLOCK_STEP_US = 1000000

-- Between two permits at the full rate, rounded up so that it is never exceeded.
local function full_interval(limits)
    return math.ceil(1000000 / math.max(1, limits.rate))
end

-- How far ahead of its time a permit may be, so that a burst goes at once.
local function tolerance(limits)
    return (math.max(1, limits.burst) - 1) * full_interval(limits)
end

-- Between two permits, after the recoveries that have passed.
local function interval(limits)
    -- the clock was set back: what lay ahead still lies as far ahead, and not a year
    local back = book.rate_us - now_us
    if back > CLOCK_STEP_US then
        book.tat_us = math.max(0, book.tat_us - back)
        book.refused_us = math.max(0, book.refused_us - back)
    end
    book.rate_us = now_us
    while book.halvings > 0 and now_us >= book.refused_us + RECOVERY_US do
        book.halvings = book.halvings - 1
        book.refused_us = book.refused_us + RECOVERY_US
    end
    return full_interval(limits) * 2 ^ book.halvings
end

-- The limits for the rate: what the members say, else what the caller says.
local function rate_limits(said)
    local limits = limits_now()
    if not limits then return said end
    return {
        rate = limits.rate > 0 and limits.rate or said.rate,
        burst = limits.burst > 0 and limits.burst or said.burst,
    }
end

-- Data was lost: the bucket is empty, and members may still hold permits for the time up to the
-- horizon. The next is one interval after that.
local function drain(limits)
    local pace = interval(limits)
    book.tat_us = math.max(book.tat_us, now_us + HORIZON_US + tolerance(limits) + pace)
end

-- Nothing can have happened later than now: else it would last for as long as the clock was set
-- back, or nobody be reaped. The one place that goes through all members; clocks are seldom set.
local function set_back()
    book.paused_until = math.min(book.paused_until, now)
    for _, id in ipairs(redis.call('HKEYS', MEMBERS)) do
        local page = load(id)
        page.joined, page.renewed = math.min(page.joined, now), math.min(page.renewed, now)
        page.since = math.min(page.since, now)
        zadd(EXPIRY, page.renewed + page.reclaim, id)
        touch(page)
    end
end

-- Notices that there are no books, or that they are those of another server: members say first
-- what they hold, nothing is granted meanwhile, and the bucket starts empty. Says whether it is so.
local function notice_loss(generation, ttl, said)
    if not known or not is_whole() then
        begin(generation)
    elseif book.run_id ~= run_id then
        book.run_id = run_id
        -- another server has another clock
        set_back()
    else
        return false
    end
    open_window(ttl, 'lost')
    drain(rate_limits(said))
    return true
end

-- Writes back what the rate and a window have changed.
local function finish_rate()
    finish({}, not known)
end
