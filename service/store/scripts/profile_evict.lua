-- What to drop first. ARGV: ttl (µs; 0 is never), max_bytes (0 is no bound), limit.
-- -> ids of profiles, least recently used first: those too old, and as many as the bound asks for.
local ttl, max_bytes, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local excess = tonumber(redis.call('GET', PROFILES_BYTES) or 0) - max_bytes
local found, at, offset = {}, now(), 0
while #found < limit do
  local page = redis.call('ZRANGE', PROFILES_USED, offset, offset + 99, 'WITHSCORES')
  if #page == 0 then break end
  offset = offset + 100
  for i = 1, #page, 2 do
    local old = ttl > 0 and at - tonumber(page[i + 1]) > ttl
    local over = max_bytes > 0 and excess > 0
    if not old and not over then return found end
    local f = redis.call('HMGET', PROFILE .. page[i], 'size', 'pinned')
    if f[2] ~= '1' and #found < limit then
      found[#found + 1] = page[i]
      excess = excess - tonumber(f[1] or 0)
    end
  end
end
return found
