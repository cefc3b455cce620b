-- What every script shares. Times are microseconds by the server's clock, so that no two machines
-- need agree on the time; they stay exact in a double until the year 2255.

local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- tostring() would round to 14 digits.
local function int(n) return string.format('%.0f', n) end

local function count(name, by) redis.call('HINCRBY', STATS, name, by or 1) end

-- By the bound and not by its place, so that other bounds in another version mislabel nothing.
local function observe(name, buckets, seconds)
  local least = 'inf'
  for _, bound in ipairs(buckets) do
    if seconds <= bound then least = string.format('%g', bound); break end
  end
  count(name .. '<=' .. least)
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

-- Forget the jobs that ended first, beyond so many that ended alike: who withdraws in a loop pushes
-- out no result. A few at a time, for the bound may have been lowered.
local function forget(state, most)
  local index = ENDED .. state
  local excess = math.min(redis.call('ZCARD', index) - most, FORGOTTEN_AT_ONCE)
  if excess <= 0 then return end
  local oldest = redis.call('ZPOPMIN', index, excess)
  for i = 1, #oldest, 2 do
    local key = JOB .. oldest[i]
    local f = redis.call('HMGET', key, 'state', 'profile')
    if f[1] == state then
      redis.call('DEL', key)
      if f[2] then redis.call('SREM', PROFILE .. f[2] .. JOBS_OF, oldest[i]) end
    end
  end
end

-- End a job for good. The request goes: it may hold the caller's own texts.
-- `keep` is 'ms most': for how long, and how many of those that ended alike, are remembered.
local function close(id, state, at, keep)
  local key = JOB .. id
  local ttl, most = string.match(keep, '(%d+) (%d+)')
  redis.call('HSET', key, 'state', state, 'finished', int(at))
  redis.call('HDEL', key, 'request', 'token', 'cancel')
  if redis.call('HGET', key, 'private') == '1' then count(TEXTS_DROPPED) end
  redis.call('PEXPIRE', key, ttl)
  redis.call('ZADD', ENDED .. state, int(at), id)
  forget(state, tonumber(most))
  count('ended:' .. state)
  announce(id)
end

local function fail(id, at, keep, code, detail, retryable, field)
  redis.call('HSET', JOB .. id, 'code', code, 'detail', detail, 'retryable', retryable, 'field', field or '')
  close(id, 'failed', at, keep)
end

local VIEW = {'state', 'attempts', 'progress', 'message', 'queue', 'high', 'created', 'started',
  'finished', 'code', 'detail', 'retryable', 'field', 'profile', 'cancel', 'cost'}

-- Where the mean seconds per cost of past jobs stand: jobs of one order of magnitude together, for
-- what a job costs beside its work weighs more in a small one.
local function per_cost(queue, cost, orders)
  return 'per_cost:' .. queue .. ':' .. int(math.floor(math.log10(cost)) + orders)
end

-- Seconds that a job of this cost should run, from past ones at most ten times as large or small;
-- '?' while there are none.
local function expected(queue, cost)
  cost = tonumber(cost or 0)
  if cost <= 0 then return '?' end
  for _, orders in ipairs({0, -1, 1}) do
    local mean = redis.call('HGET', STATS, per_cost(queue, cost, orders))
    if mean then return string.format('%.3f', cost * tonumber(mean)) end
  end
  return '?'
end

-- What keeps the workers of a queue busy now: 'elapsed progress expected' of every running job.
local function running(queue, at)
  local found = {}
  for _, leased in ipairs(QUEUES) do
    for _, id in ipairs(redis.call('ZRANGE', LEASED .. leased, 0, BUSY - 1)) do
      local f = redis.call('HMGET', JOB .. id, 'worker', 'started', 'progress', 'cost', 'cancel')
      if leased == queue or redis.call('ZSCORE', WORKERS .. queue, f[1] or '') then
        local elapsed = (at - tonumber(f[2] or at)) / 1000000
        local progress = f[5] and '1' or f[3] or '0' -- a cancelled one ends now
        found[#found + 1] = string.format('%.3f %s %s', elapsed, progress, expected(leased, f[4]))
      end
    end
  end
  return table.concat(found, ';')
end

-- Expected seconds of the first jobs that stand before place `ahead`.
local function before(queue, high, ahead)
  local found = {}
  for _, first in ipairs(high == '1' and {'1'} or {'1', '0'}) do
    local last = math.min(ahead, ESTIMATED) - #found - 1
    if last >= 0 then
      for _, id in ipairs(redis.call('ZRANGE', ready_key(queue, first), 0, last)) do
        found[#found + 1] = expected(queue, redis.call('HGET', JOB .. id, 'cost'))
      end
    end
  end
  return table.concat(found, ';')
end

-- A job as callers see it: the fields of VIEW, then jobs ahead, expected seconds, what runs, what
-- stands before it, workers, now.
local function view(id)
  local v = redis.call('HMGET', JOB .. id, unpack(VIEW))
  if not v[1] then return false end
  local at = now()
  local ahead, queue = false, v[5]
  if v[1] == 'queued' then
    ahead = redis.call('ZRANK', ready_key(queue, v[6]), id)
    if ahead and v[6] ~= '1' then ahead = ahead + redis.call('ZCARD', ready_key(queue, '1')) end
  end
  local n, own = #VIEW, expected(queue, v[#VIEW])
  v[n + 1] = ahead and int(ahead)
  v[n + 2] = own
  v[n + 3], v[n + 4] = '', ''
  if ahead and own ~= '?' then
    v[n + 3], v[n + 4] = running(queue, at), before(queue, v[6], ahead)
  end
  v[n + 5] = int(redis.call('ZCOUNT', WORKERS .. queue, int(at), '+inf'))
  v[n + 6] = int(at)
  return v
end
