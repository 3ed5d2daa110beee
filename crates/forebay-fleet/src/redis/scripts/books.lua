-- The books of one backend: what every script of this keeper begins with. Each script is this
-- file, then rate.lua, then its own. The rules are those of src/ledger.rs; what differs is the
-- cost: sums are kept up to date and everybody is found by an index, so that no script walks
-- all members.
--
-- All keys share one hash tag and all are declared:
local BOOK, COUNT, MAX = KEYS[1], KEYS[2], KEYS[3]
local MEMBERS, PROFILES = KEYS[4], KEYS[5]
local EXPIRY, WAITING, RICH = KEYS[6], KEYS[7], KEYS[8]
local OPENS, RATES, BURSTS = KEYS[9], KEYS[10], KEYS[11]
-- Arguments that all have:
local CHANNEL, KEEP_S = ARGV[1], tonumber(ARGV[2])

local MOVES_MAX = 1000
local REAPED_MAX = 1000
local REFRESH_MS = 3600000
local LIMIT_SPAN = 4194304 -- Limits::MAX + 1
local VERSION_MAX = 1073741823 -- Limits::VERSION_MAX

local clock = redis.call('TIME')
local now_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local now = math.floor(now_us / 1000)
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''

-- The book's own numbers. `window_until` is 0 when no window is open.
local NUMBERS = {
    'windows', 'window_until', 'window_lossy', 'window_trusting', 'last_ms', 'heard_ms',
    'paused_until', 'total', 'recall', 'expected', 'unmet', 'weight', 'shares', 'members',
    'waiting', 'limit', 'kept_ms', 'tat_us', 'halvings', 'refused_us', 'rate_us',
}

local book = {}
local was_total, was_limit
local known

local function read_book()
    local values = redis.call('HMGET', BOOK, 'generation', 'run_id', unpack(NUMBERS))
    known = values[1] and true or false
    book.generation, book.run_id = values[1] or '', values[2] or ''
    for i, name in ipairs(NUMBERS) do book[name] = tonumber(values[i + 2] or 0) end
    was_total, was_limit = book.total, book.limit
end
read_book()

-- Whether the indexes belong to the book. Not so when a server that may evict keys did.
local function is_whole()
    return redis.call('HLEN', MEMBERS) == book.members
        and redis.call('ZCARD', EXPIRY) == book.members
        and redis.call('ZCARD', RICH) == book.members
        and redis.call('ZCARD', OPENS) == book.members
        and redis.call('ZCARD', WAITING) == book.waiting
end

-- Begins new books, without a window.
local function begin(generation)
    redis.call('DEL', unpack(KEYS))
    for _, name in ipairs(NUMBERS) do book[name] = 0 end
    book.generation, book.run_id = generation, run_id
    book.last_ms, book.heard_ms = now, now
    was_total, was_limit = -1, -1
end

-- Opens a window because of a doubt: the books are 'lost', the 'clock' was moved, or there was
-- 'silence' for a whole ttl.
local function open_window(ttl, doubt)
    local open = book.window_until > 0
    local lossy = doubt == 'lost' or (open and book.window_lossy == 1)
    local trusting = doubt ~= 'clock' or (open and book.window_trusting == 1)
    book.window_lossy, book.window_trusting = lossy and 1 or 0, trusting and 1 or 0
    book.window_until = now + ttl
    book.windows = book.windows + 1
    book.heard_ms = now
end

local function close_window()
    book.window_until, book.window_lossy, book.window_trusting = 0, 0, 0
end

local function is_lossy()
    return book.window_until > 0 and book.window_lossy == 1
end

local function is_trusting()
    return book.window_until > 0 and book.window_trusting == 1
end

-- The limits that count, and a member whose open limit that is; nil without members. A score
-- holds the version, turned round, above the limit: the first is the newest and lowest.
local function limits_now()
    local top = redis.call('ZRANGE', OPENS, 0, 0, 'WITHSCORES')
    if #top == 0 then return nil end
    local score = tonumber(top[2])
    local open = score % LIMIT_SPAN
    local newest = score - open
    local least = function(index)
        local first = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
        if #first == 0 then return 0 end
        local value = tonumber(first[2]) % LIMIT_SPAN
        return tonumber(first[2]) - value == newest and value or 0
    end
    return { open = open, rate = least(RATES), burst = least(BURSTS), by = top[1] }
end

-- Pages of members ------------------------------------------------------------------------------

local FIELDS = {
    'seq', 'held', 'reserved', 'recall', 'expected', 'want', 'waiters', 'since', 'share', 'joined',
    'renewed', 'declared', 'weight', 'heartbeat', 'reclaim', 'open', 'rate', 'burst', 'version',
}

local pages = {} -- those looked at; false if there is none
local touched = {} -- those to be written, in order
local fresh = {} -- keys that may just have come into being

local function booked(page) return page.held + page.reserved end
local function lasting(page) return math.max(0, booked(page) - page.recall) end
local function unmet(page) return math.max(0, page.want - booked(page)) end

-- Where a page stands among those who wait: the score is its poverty. A division of whole numbers
-- below 2^24 is rounded in the same direction for all and never to the same number for two
-- different fractions, so this is the order of the exact fractions. Equals are sorted by the
-- text: who has waited longest, then by name.
local function waiting_entry(page)
    if unmet(page) == 0 then return false, 0 end
    return string.format('%015.0f', page.since) .. ':' .. page.id, booked(page) / page.weight
end

-- How a page ranks among those who can give: by what it would have left for its weight, since of
-- two that are equally rich the heavier one misses one lease less. Last who has nothing.
local function riches(page)
    local left = lasting(page) - 1
    return left < 0 and -1 or left / page.weight
end

local function remember(page)
    page.was = {
        total = booked(page), recall = page.recall, expected = page.expected,
        unmet = unmet(page), weight = page.weight, shares = page.share,
    }
end

local NOTHING = { total = 0, recall = 0, expected = 0, unmet = 0, weight = 0, shares = 0 }

-- Brings the sums up to date with a page.
local function sum(page)
    local before = page.was
    remember(page)
    for name, value in pairs(page.was) do book[name] = book[name] + value - before[name] end
end

local function zadd(index, score, text)
    if redis.call('ZADD', index, string.format('%.17g', score), text) == 1 then
        fresh[index] = true
    end
end

local function index_waiting(page)
    local text, score = waiting_entry(page)
    if page.waits and page.waits ~= text then
        redis.call('ZREM', WAITING, page.waits)
        book.waiting = book.waiting - 1
    end
    if text and (page.waits ~= text or page.poverty ~= score) then
        zadd(WAITING, score, text)
        if page.waits ~= text then book.waiting = book.waiting + 1 end
    end
    page.waits, page.poverty = text, score
end

local function index_rich(page)
    local score = riches(page)
    if score ~= page.riches then zadd(RICH, score, page.id) end
    page.riches = score
end

-- A page as it was stored, or false.
local function load(id)
    if pages[id] == nil then
        local text = redis.call('HGET', MEMBERS, id)
        local page = text and cjson.decode(text)
        if page then
            page.id = id
            remember(page)
            page.waits, page.poverty = waiting_entry(page)
            page.riches = riches(page)
        end
        pages[id] = page
    end
    return pages[id]
end

local function touch(page)
    if not page.touched then
        page.touched = true
        table.insert(touched, page)
    end
end

local function remove(page)
    for name, value in pairs(page.was) do book[name] = book[name] - value end
    page.was = NOTHING
    if page.stored ~= false then
        redis.call('HDEL', MEMBERS, page.id)
        redis.call('HDEL', PROFILES, page.id)
        redis.call('ZREM', EXPIRY, page.id)
        redis.call('ZREM', RICH, page.id)
        redis.call('ZREM', OPENS, page.id)
        redis.call('ZREM', RATES, page.id)
        redis.call('ZREM', BURSTS, page.id)
        book.members = book.members - 1
    end
    if page.waits then
        redis.call('ZREM', WAITING, page.waits)
        book.waiting = book.waiting - 1
    end
    page.gone = true
    pages[page.id] = false
end

-- Brings what follows from `want` up to date.
local function settle(page)
    local missing = unmet(page)
    page.expected = math.min(page.expected, missing)
    if missing == 0 then
        page.since = 0
    elseif page.since == 0 then
        page.since = now
    end
end

-- Gives free leases to those who wait, the poorest first, and among equals who has waited longest.
local function distribute(me, news)
    if book.window_until > 0 or now < book.paused_until or book.unmet == 0 then return end
    local limits = limits_now()
    local free = limits and math.max(0, limits.open - book.total) or 0
    for _ = 1, MOVES_MAX do
        if free == 0 then return end
        local first = redis.call('ZRANGE', WAITING, 0, 0)[1]
        if not first then return end
        local page = load(string.sub(first, 17))
        local missing = unmet(page)
        local alone = missing == book.unmet or book.unmet <= free
        local given = alone and math.min(missing, free) or 1
        if page.id == me then
            page.held = page.held + given
        else
            page.reserved = page.reserved + given
            news[page.id] = true
        end
        page.expected = math.max(0, page.expected - given)
        page.since = now
        settle(page)
        sum(page)
        index_waiting(page)
        touch(page)
        free = free - given
    end
end

-- Writes everything back, and announces what is new for others.
local function finish(news, joined)
    for _, page in ipairs(touched) do
        if not page.gone then
            sum(page)
            index_waiting(page)
            index_rich(page)
            local stored = {}
            for _, name in ipairs(FIELDS) do stored[name] = page[name] end
            if redis.call('HSET', MEMBERS, page.id, cjson.encode(stored)) == 1 then
                fresh[MEMBERS] = true
            end
        end
    end
    local limits = limits_now()
    if limits then book.limit = limits.open end
    if book.total ~= was_total then redis.call('SET', COUNT, book.total, 'EX', KEEP_S) end
    if book.limit ~= was_limit then redis.call('SET', MAX, book.limit, 'EX', KEEP_S) end
    local refresh = joined or now - book.kept_ms >= REFRESH_MS or now < book.kept_ms
    if refresh then book.kept_ms = now end
    local write = { 'generation', book.generation, 'run_id', book.run_id }
    for _, name in ipairs(NUMBERS) do
        table.insert(write, name)
        table.insert(write, string.format('%.0f', book[name]))
    end
    redis.call('HSET', BOOK, unpack(write))
    if refresh then
        for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, KEEP_S) end
    else
        for key in pairs(fresh) do redis.call('EXPIRE', key, KEEP_S) end
    end
    local names = {}
    for id in pairs(news) do table.insert(names, id) end
    if #names > 0 then redis.call('PUBLISH', CHANNEL, cjson.encode(names)) end
    return limits
end
