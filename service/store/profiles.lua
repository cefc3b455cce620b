-- Stored profiles. Calls and answers as in queue.lua.
--
-- Names in capitals are the keys and bounds of keys.py, which is put in front of this text:
--   PROFILE .. id               hash    body, envelope, summary, model, size, created, pinned
--   PROFILE .. id .. JOBS_OF    set     jobs that ended in this profile
--   PROFILES                    zset    ids by creation
--   PROFILES_MODEL .. model     zset    the same of one model
--   PROFILES_USED               zset    ids by last use
--   PROFILES_BYTES              string  sum of all sizes
--   JOB .. id                   hash    one job (see queue.lua)

local operations = {}

-- Delete a profile. given: id, job_ttl (ms). -> 1 when there was one, else 0
function operations.delete(given)
  local id, key = given.id, PROFILE .. given.id
  local model, size = unpack(redis.call('HMGET', key, 'model', 'size'))
  if not model then return 0 end
  redis.call('ZREM', PROFILES, id)
  redis.call('ZREM', PROFILES_USED, id)
  redis.call('ZREM', PROFILES_MODEL .. model, id)
  redis.call('DECRBY', PROFILES_BYTES, size)
  -- The jobs that led here would run again if asked for, so their records need not stay.
  for _, job in ipairs(redis.call('SMEMBERS', key .. JOBS_OF)) do
    local state, profile = unpack(redis.call('HMGET', JOB .. job, 'state', 'profile'))
    if state == 'done' and profile == id then
      redis.call('PEXPIRE', JOB .. job, string.format('%.0f', given.job_ttl + RECORD_GRACE_MS))
    end
  end
  redis.call('DEL', key, key .. JOBS_OF)
  return 1
end

-- Which profiles to delete first. given: ttl (µs; 0 is never), max_bytes (0 is no bound), limit.
-- -> ids, least recently used first: those unused for `ttl`, and enough to meet `max_bytes`
function operations.evictable(given)
  local time = redis.call('TIME')
  local at = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local excess = tonumber(redis.call('GET', PROFILES_BYTES) or 0) - given.max_bytes
  local found, offset = {}, 0
  while #found < given.limit do
    local page = redis.call('ZRANGE', PROFILES_USED, offset, offset + 99, 'WITHSCORES')
    if #page == 0 then break end
    offset = offset + 100
    for i = 1, #page, 2 do
      local id, used = page[i], tonumber(page[i + 1])
      local old = given.ttl > 0 and at - used > given.ttl
      local over = given.max_bytes > 0 and excess > 0
      if not old and not over then return found end
      local size, pinned = unpack(redis.call('HMGET', PROFILE .. id, 'size', 'pinned'))
      if pinned ~= '1' and #found < given.limit then
        found[#found + 1] = id
        excess = excess - tonumber(size or 0)
      end
    end
  end
  return found
end

-- Keep a profile from eviction, or let it go again. given: id, pinned.
-- -> 1 when there is such a profile, else 0
function operations.pin(given)
  local key = PROFILE .. given.id
  if redis.call('EXISTS', key) == 0 then return 0 end
  redis.call('HSET', key, 'pinned', given.pinned and '1' or '0')
  return 1
end

return operations[ARGV[1]](cjson.decode(ARGV[2]), unpack(ARGV, 3))
