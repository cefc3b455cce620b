-- Record how a job ended. ARGV: id, token, keep, late, then one of
--   'failed', code, detail, retryable, field at fault ('' is none)
--   'cancelled'
--   'done', profile id, body, envelope, summary, model
-- -> 'ok' | 'lost' | 'again' (cancelled, but somebody asked for it since: it waits again)
-- `late`: the result was kept on disk while Redis was away. Its profile is kept in any case, for
-- profiles are content-addressed; the job ends if it waits again, but another worker's lease stands.
local id, token, keep, outcome = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
local key, at = JOB .. id, now()
local f = redis.call('HMGET', key, 'token', 'state', 'queue', 'started', 'pinned', 'interest', 'high', 'cost')
local mine = f[1] == token and f[2] == 'running'
local late = ARGV[4] == '1' and outcome == 'done'
if not mine and not late then return 'lost' end
local queue = f[3]

-- -> whether it is a new one
local function keep_profile(pid, body, envelope, summary, model)
  local pkey, size = PROFILE .. pid, #body + #envelope + #summary
  -- Immutable: what stands under this id already is never changed.
  local new = redis.call('EXISTS', pkey) == 0
  if new then
    redis.call('HSET', pkey, 'body', body, 'envelope', envelope, 'summary', summary, 'model', model,
      'size', int(size), 'created', int(at))
    redis.call('ZADD', PROFILES, int(at), pid)
    redis.call('ZADD', PROFILES_MODEL .. model, int(at), pid)
    redis.call('INCRBY', PROFILES_BYTES, int(size))
  end
  redis.call('ZADD', PROFILES_USED, int(at), pid)
  redis.call('SADD', pkey .. JOBS_OF, id)
  return new
end

local function learn(name, value)
  local mean = tonumber(redis.call('HGET', STATS, name) or value)
  redis.call('HSET', STATS, name, string.format('%.9g', mean + 0.2 * (value - mean)))
end

local function measure_run(new)
  local run = (at - tonumber(f[4] or at)) / 1000000
  observe('run', RUN_BUCKETS, run)
  learn('mean_run:' .. queue, run)
  local cost = tonumber(f[8] or 0)
  -- A profile that stood already was found, not made: that tells nothing about the work.
  if new and cost > 0 then learn(per_cost(queue, cost, 0), run / cost) end
end

local new = false
if outcome == 'done' then
  -- A write that frees comes first, and a full server lets the others follow: else a store that
  -- waiting requests have filled would never drain. A late result of a job that runs elsewhere has
  -- nothing to free; such a one is refused as a whole, and its worker keeps it.
  if mine or f[2] == 'queued' then redis.call('HDEL', key, 'request') end
  new = keep_profile(ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10])
  if not mine and f[2] ~= 'queued' then return 'lost' end
end
redis.call('ZREM', LEASED .. queue, id)
redis.call('ZREM', ready_key(queue, f[7]), id)
if outcome == 'done' then
  redis.call('HSET', key, 'profile', ARGV[6], 'progress', '1', 'message', '')
  close(id, 'done', at, keep)
  -- A pinned revision is answered from the cache for as long as its profile exists.
  if f[5] == '1' then redis.call('PERSIST', key) end
  if mine then measure_run(new) end
elseif outcome == 'failed' then
  fail(id, at, keep, ARGV[6], ARGV[7], ARGV[8], ARGV[9])
elseif tonumber(f[6] or 0) > 0 then
  redis.call('HINCRBY', key, 'attempts', -1)
  enqueue(id)
  return 'again'
else
  close(id, 'cancelled', at, keep)
end
return 'ok'
