-- Books one report of a member: `Ledger::step`.

local me = ARGV[3]
local seq, held, want = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local waiters, share = tonumber(ARGV[7]), tonumber(ARGV[8])
local elapsed, pause = tonumber(ARGV[9]), tonumber(ARGV[10]) -- elapsed: '' at first
local leave, generation = ARGV[11] == '1', ARGV[12]
local weight, divisor = tonumber(ARGV[13]), tonumber(ARGV[14])
local said = {
    open = tonumber(ARGV[15]), rate = tonumber(ARGV[16]),
    burst = tonumber(ARGV[17]), version = tonumber(ARGV[18]),
}
local ttl, heartbeat = tonumber(ARGV[19]), tonumber(ARGV[20])
local margin, reclaim = tonumber(ARGV[21]), tonumber(ARGV[22])
local profile = ARGV[23]

local news = {}

-- Whether somebody has not been heard of for a ttl: the one who is reaped first, if anybody.
local function somebody_is_overdue()
    local first = redis.call('ZRANGE', EXPIRY, 0, 0)[1]
    return first and now >= load(first).renewed + ttl
end

-- Opens a window when the clock was moved, or when all were cut off together: then nobody's
-- leases went to others meanwhile, and each may have gone over to its share.
local function notice_time()
    local page = load(me)
    -- what comes late says nothing of the clock
    if page and seq <= page.seq then page = false end
    local back = now + margin < book.last_ms
    local ahead = page and elapsed and math.max(0, now - page.renewed) > elapsed + margin
    -- if the last one heard of is not yet overdue, the others would still be taken for dead
    local usual = heartbeat + margin
    local quiet = math.max(0, now - book.heard_ms) >= math.max(ttl - usual, usual)
    local silent = page and quiet and somebody_is_overdue()
    if back then set_back() end
    -- a report that was long under way looks like a leap, too, when all were silent
    if back or ahead and not silent then
        open_window(ttl, 'clock')
    elseif silent then
        open_window(ttl, 'silence')
    else
        return
    end
    -- the bucket would seem full after a leap ahead
    drain(rate_limits(said))
end

-- Whether the report shows how much time has passed: if the clock was moved, it has been noticed
-- by now. Whoever has just joined, was never answered or comes late cannot tell.
local function can_judge()
    local page = load(me)
    return page and elapsed and seq > page.seq and now >= page.joined + page.heartbeat
end

-- Removes those that have been silent for too long.
local function reap_expired()
    local page = load(me)
    if book.window_until > 0 then return end
    if page.renewed + page.reclaim <= now then remove(page) end
    local expired = redis.call('ZRANGEBYSCORE', EXPIRY, '-inf', now, 'LIMIT', 0, REAPED_MAX)
    for _, id in ipairs(expired) do remove(load(id)) end
end

-- Finds the page of the report, or makes it; says why not if it must not be booked.
local function admit()
    local page = load(me)
    if not page then
        local joins = seq == 1 and held == 0
        if not (joins or is_lossy()) then return 'reaped' end
        page = {
            id = me, seq = 0, held = held, reserved = 0, recall = 0, expected = 0, want = 0,
            waiters = 0, since = 0, share = 0, joined = now, renewed = now,
            declared = book.windows, was = NOTHING, waits = false, stored = false,
        }
        pages[me] = page
        return nil
    end
    if seq <= page.seq then return 'stale' end
    -- a report that was sent before the window and arrived in it does not count for good
    if is_trusting() and (page.declared ~= book.windows or held > page.held) then
        page.held, page.reserved, page.declared = held, 0, book.windows
    elseif held > page.held then
        -- leases that the books do not have: somebody else may have them
        remove(page)
        return 'reaped'
    end
    return nil
end

local function index_limit(index, value)
    if value == 0 and index ~= OPENS then
        redis.call('ZREM', index, me)
    else
        zadd(index, (VERSION_MAX - said.version) * LIMIT_SPAN + value, me)
    end
end

-- Books what the report says of the member itself.
local function book_profile(page)
    if page.stored == false then
        page.stored = true
        book.members = book.members + 1
    end
    local other = page.version ~= said.version
    if other or page.open ~= said.open then index_limit(OPENS, said.open) end
    if other or page.rate ~= said.rate then index_limit(RATES, said.rate) end
    if other or page.burst ~= said.burst then index_limit(BURSTS, said.burst) end
    page.open, page.rate, page.burst, page.version = said.open, said.rate, said.burst, said.version
    page.weight, page.heartbeat, page.reclaim = weight, heartbeat, reclaim
    -- never changes in one life, or almost: a new text only if it is another
    if redis.call('HGET', PROFILES, me) ~= profile then
        redis.call('HSET', PROFILES, me, profile)
        fresh[PROFILES] = true
    end
end

-- Books what is kept; what was moved to the member is now collected.
local function book_report(page)
    if pause > 0 then book.paused_until = math.max(book.paused_until, now + pause) end
    if now >= page.joined + (page.heartbeat or heartbeat) then
        book.heard_ms = math.max(book.heard_ms, now)
    end
    book_profile(page)
    page.seq, page.renewed = seq, now
    zadd(EXPIRY, now + reclaim, me)
    page.recall = math.max(0, page.recall - math.max(0, page.held - held))
    page.want = math.max(want, held)
    page.waiters, page.share = waiters, share
    local collected = math.min(page.reserved, page.want - held)
    page.held, page.reserved = held + collected, 0
    page.recall = math.min(page.recall, page.held)
    settle(page)
    sum(page)
    index_waiting(page)
    touch(page)
end

-- The share of the limit that a weight gives.
local function fair_share(limits, page)
    local all = limits.open * page.weight
    local weights = math.max(1, book.weight)
    return (all - all % weights) / weights
end

-- Over a lowered limit, asks the member for what it has over its share of it.
local function recall_surplus(limits, page)
    -- the books may count those who have long gone
    if is_lossy() then return end
    local over = math.max(0, math.max(0, book.total - limits.open) - book.recall)
    local spare = math.max(0, lasting(page) - fair_share(limits, page))
    page.recall = page.recall + math.min(over, spare, page.held)
    sum(page)
end

-- What was asked back from somebody who has gone, or went to another one, does not come any more.
local function forget_lost_recalls(limits, page)
    local over = math.max(0, book.total - limits.open)
    local lost = math.max(0, book.expected - math.max(0, book.recall - over))
    page.expected = page.expected - math.min(page.expected, lost)
    sum(page)
end

-- The richest of the others.
local function find_donor()
    for _, id in ipairs(redis.call('ZREVRANGE', RICH, 0, 1)) do
        if id ~= me then return load(id) end
    end
    return nil
end

-- Asks leases back from those who have most, as far as that makes it fairer; and for one who has
-- none and has waited long, from anybody.
local function recall_for_me(page)
    if book.window_until > 0 then return end
    for _, other in ipairs(touched) do
        if not other.gone then index_rich(other) end
    end
    for _ = 1, MOVES_MAX do
        if unmet(page) <= page.expected then return end
        local donor = find_donor()
        if not donor or lasting(donor) == 0 then return end
        local will_have = booked(page) + page.expected
        local fairer = (lasting(donor) - 1) * page.weight >= (will_have + 1) * donor.weight
        local waited = page.since > 0 and math.max(0, now - page.since) or 0
        local turn = will_have == 0 and waiters > 0 and waited >= heartbeat
        if not (fairer or turn) then return end
        news[donor.id] = true
        donor.recall = donor.recall + 1
        page.expected = page.expected + 1
        sum(donor)
        sum(page)
        index_rich(donor)
        touch(donor)
    end
end

-- Takes back recalls that nobody waits for any more.
local function end_needless_recalls(limits, page)
    local needed = book.expected + math.max(0, book.total - limits.open)
    page.recall = page.recall - math.min(page.recall, math.max(0, book.recall - needed))
    sum(page)
end

-- The offline share to tell the member. Raised only by what the others are known to go without;
-- lowered in the books once the member has said so.
local function offer_share(limits, page)
    local most = math.floor(limits.open / math.max(1, book.members, divisor))
    local target = math.min(fair_share(limits, page), most)
    local free = math.max(0, limits.open - book.shares)
    if target > page.share and not is_lossy() then
        page.share = page.share + math.min(free, target - page.share)
    end
    return math.min(target, page.share)
end

if not notice_loss(generation, ttl, said) then notice_time() end
book.last_ms = now
if can_judge() then
    if book.window_until > 0 and book.window_until <= now then close_window() end
    reap_expired()
end
local refused = admit()
if refused then
    distribute(nil, news)
    finish(news, false)
    return { refused }
end
local page = load(me)
if leave and held == 0 then
    remove(page)
    distribute(nil, news)
    local limits = finish(news, false)
    return { 'booked', book.generation, 0, 0, 0, 0, limits and limits.open or 0, '', 0, 0, 0 }
end
local joined = page.stored == false
book_report(page)
distribute(me, news)
local limits = limits_now()
recall_surplus(limits, page)
forget_lost_recalls(limits, page)
recall_for_me(page)
end_needless_recalls(limits, page)
local offered = offer_share(limits, page)
finish(news, joined)
return {
    'booked', book.generation, page.held, offered, page.recall, book.unmet > 0 and 1 or 0,
    limits.open, limits.by, book.total, book.members, math.max(0, book.window_until - now),
}
