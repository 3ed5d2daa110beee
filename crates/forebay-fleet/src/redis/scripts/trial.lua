-- Tries every command that the scripts use, on keys of its own, and says which are refused.

local refused = {}

local function try(...)
    local answer = redis.pcall(...)
    if type(answer) == 'table' and answer.err then
        local known = { ... }
        table.insert(refused, known[1] .. ' (' .. answer.err .. ')')
    end
end

try('TIME')
try('INFO', 'server')
try('HSET', KEYS[1], 'a', '1')
try('HMGET', KEYS[1], 'a')
try('HGET', KEYS[1], 'a')
try('HGETALL', KEYS[1])
try('HLEN', KEYS[1])
try('HKEYS', KEYS[1])
try('HDEL', KEYS[1], 'a')
try('SET', KEYS[2], '1', 'EX', 60)
try('EXISTS', KEYS[2])
try('EXPIRE', KEYS[2], 60)
try('ZADD', KEYS[3], '1', 'a')
try('ZCARD', KEYS[3])
try('ZRANGE', KEYS[3], 0, 0)
try('ZREVRANGE', KEYS[3], 0, 0)
try('ZRANGEBYSCORE', KEYS[3], '-inf', 0, 'LIMIT', 0, 1)
try('ZREM', KEYS[3], 'a')
try('PUBLISH', ARGV[1], '[]')
try('DEL', KEYS[1], KEYS[2], KEYS[3])
return refused
