-- Everything of one backend's books, for operators. Writes nothing.

local limits = limits_now()
return {
    book.generation, now, limits and limits.open or book.limit, book.total,
    math.max(0, book.window_until - now),
    redis.call('HGETALL', MEMBERS), redis.call('HGETALL', PROFILES),
}
