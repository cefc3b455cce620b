-- What every script shares. Times are microseconds by the server's clock, so that no two machines
-- need agree on the time; they stay exact in a double until the year 2255.

local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- tostring() would round to 14 digits.
local function int(n) return string.format('%.0f', n) end

local function count(name, by) redis.call('HINCRBY', STATS, name, by or 1) end

local function observe(name, buckets, seconds)
  local slot = #buckets + 1
  for i, bound in ipairs(buckets) do
    if seconds <= bound then slot = i; break end
  end
  count(name .. ':' .. slot)
  redis.call('HINCRBYFLOAT', STATS, name .. ':sum', string.format('%.6f', seconds))
end

local function ready_key(queue, high)
  if high == '1' then return READY .. queue .. HIGH end
  return READY .. queue
end

local function wake(queue)
  if redis.call('LLEN', WAKE .. queue) < WAKE_TOKENS then redis.call('RPUSH', WAKE .. queue, '1') end
end

local function announce(id) redis.call('PUBLISH', EVENTS, id) end

-- Put a job (back) into its queue; its time of creation is its place, so a job that is given back
-- or redelivered stands in front of everything younger.
local function enqueue(id)
  local key = JOB .. id
  local f = redis.call('HMGET', key, 'queue', 'high', 'created')
  redis.call('HDEL', key, 'token', 'worker')
  redis.call('HSET', key, 'state', 'queued', 'progress', '0', 'message', '')
  redis.call('ZADD', ready_key(f[1], f[2]), f[3], id)
  wake(f[1])
  announce(id)
end

-- End a job for good. The request goes: it may hold the caller's own texts.
local function close(id, state, at, ttl)
  local key = JOB .. id
  redis.call('HSET', key, 'state', state, 'finished', int(at))
  redis.call('HDEL', key, 'request', 'token', 'cancel')
  redis.call('PEXPIRE', key, ttl)
  count('ended:' .. state)
  announce(id)
end

local function fail(id, at, ttl, code, detail, retryable)
  redis.call('HSET', JOB .. id, 'code', code, 'detail', detail, 'retryable', retryable)
  close(id, 'failed', at, ttl)
end

local VIEW = {'state', 'attempts', 'progress', 'message', 'queue', 'high', 'created', 'started',
  'finished', 'code', 'detail', 'retryable', 'profile', 'cancel'}

-- A job as callers see it: the fields of VIEW, then jobs ahead, mean run (s), workers, now.
local function view(id)
  local v = redis.call('HMGET', JOB .. id, unpack(VIEW))
  if not v[1] then return false end
  local at = now()
  local ahead, queue = false, v[5]
  if v[1] == 'queued' then
    ahead = redis.call('ZRANK', ready_key(queue, v[6]), id)
    if ahead and v[6] ~= '1' then ahead = ahead + redis.call('ZCARD', ready_key(queue, '1')) end
  end
  local n = #VIEW
  v[n + 1] = ahead and int(ahead)
  v[n + 2] = redis.call('HGET', STATS, 'mean_run:' .. queue)
  v[n + 3] = int(redis.call('ZCOUNT', WORKERS .. queue, int(at), '+inf'))
  v[n + 4] = int(at)
  return v
end
