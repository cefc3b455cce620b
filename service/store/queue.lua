-- The job queue. Each function in `operations` is one atomic step and one round trip.
--
-- Call: ARGV[1] is the operation, ARGV[2] its named arguments as one JSON object. Payloads (a request,
-- the parts of a profile) follow as they are: escaping and parsing them would hold the server.
-- Answers: one record is a JSON object; several are a list; a plain outcome is a word.
--
-- Names in capitals are the keys and bounds of keys.py, which is put in front of this text:
--   JOB .. id                 hash     one job
--   READY .. lane [.. HIGH]   zset     waiting jobs by time of creation
--   LEASED .. queue           zset     running jobs by the end of their lease
--   WAKE .. lane              list     tokens that idle workers block on
--   ENDED .. state            zset     finished jobs by the time of their end
--   DEAD                      stream   jobs that lost their worker too often
--   CLAIM .. worker           string   the job that a worker took last
--   WORKER .. name            string   what a live worker offers
--   WORKERS .. queue or lane  zset     its workers by when they count as gone
--   LANES .. queue            set      what the jobs of a queue need, and what its workers know
--   PROFILE .. id [.. JOBS_OF]         a profile, the jobs that ended in it (see profiles.lua)
--   EXPERIMENT .. id          hash     the result of one experiment, by the id of its job
--   EXPERIMENTS               zset     ids of results by time
--   STATS                     hash     counters, histograms, mean run times
--   EVENTS                    channel  ids of jobs that changed
--
-- A job needs a worker that knows its kind and its version (`kinds.py`). The jobs of a queue with one
-- need stand in a lane of their own, so a worker never sees what it does not know.
--
-- Times are microseconds by the server's clock, so the clocks of other machines do not matter. They
-- stay exact in a double until the year 2255.

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- tostring() would round to 14 digits.
local function int(number) return string.format('%.0f', number) end

-- Fields of a job by name; those that it does not have are nil.
local function read(id, ...)
  local found, names = {}, {...}
  for i, value in ipairs(redis.call('HMGET', JOB .. id, ...)) do
    if value then found[names[i]] = value end
  end
  return found
end

local function count(name) redis.call('HINCRBY', STATS, name, 1) end

-- Histogram fields are named by their bound, so another version with other bounds mislabels nothing.
local function observe(name, buckets, seconds)
  seconds = math.max(0, seconds)  -- the clock may have been set back
  local least = 'inf'
  for _, bound in ipairs(buckets) do
    if seconds <= bound then least = string.format('%g', bound); break end
  end
  count(name .. '<=' .. least)
  redis.call('HINCRBYFLOAT', STATS, name .. ':sum', string.format('%.6f', seconds))
end

-- Jobs of the first versions need nothing in particular; only workers of those versions take them.
local function lane(queue, needs)
  if needs then return queue .. ':' .. needs end
  return queue
end

local function ready_key(queue, needs, high)
  local key = READY .. lane(queue, needs)
  if high == '1' then return key .. HIGH end
  return key
end

-- Live workers of a queue or a lane.
local function live_workers(name, at)
  return redis.call('ZCOUNT', WORKERS .. name, int(at), '+inf')
end

local function kind_of(needs) return string.match(needs, '^[^/]+') end

local function mean_run(queue, kind)
  return redis.call('HGET', STATS, MEAN_RUN .. lane(queue, kind)) or nil
end

local function publish(id) redis.call('PUBLISH', EVENTS, id) end

-- Put a job (back) into its queue. Its place is its time of creation, so a job that was given back or
-- lost its worker stands in front of everything younger.
local function enqueue(id)
  local key, job = JOB .. id, read(id, 'queue', 'needs', 'high', 'created')
  redis.call('HDEL', key, 'token', 'worker', 'loaded', 'loaded_progress', 'reported', 'declined')
  redis.call('HSET', key, 'state', 'queued', 'progress', '0', 'message', '')
  redis.call('ZADD', ready_key(job.queue, job.needs, job.high), job.created, id)
  if job.needs then redis.call('SADD', LANES .. job.queue, job.needs) end
  local wake = WAKE .. lane(job.queue, job.needs)
  if redis.call('LLEN', wake) < WAKE_TOKENS then redis.call('RPUSH', wake, '1') end
  publish(id)
end

-- Forget the oldest jobs with this end, beyond `most` of them. Each end has a bound of its own, so a
-- caller who submits and withdraws in a loop pushes out no result. A few at a time, because the bound
-- may have been lowered.
local function forget_oldest(state, most)
  local index = ENDED .. state
  local excess = math.min(redis.call('ZCARD', index) - most, FORGOTTEN_AT_ONCE)
  if excess <= 0 then return end
  local oldest = redis.call('ZPOPMIN', index, excess)
  for i = 1, #oldest, 2 do
    local id = oldest[i]
    local job = read(id, 'state', 'profile')
    if job.state == state then
      redis.call('DEL', JOB .. id, EXPERIMENT .. id)
      redis.call('ZREM', EXPERIMENTS, id)
      if job.profile then redis.call('SREM', PROFILE .. job.profile .. JOBS_OF, id) end
    end
  end
end

-- End a job for good. The request goes, because it may hold the caller's own texts.
-- given: job_ttl (ms) and max_finished, how long and how many ended jobs are remembered.
local function close(id, state, at, given)
  local key = JOB .. id
  redis.call('HSET', key, 'state', state, 'finished', int(at))
  redis.call('HDEL', key, 'document', 'token', 'cancel', 'declined')
  if redis.call('HGET', key, 'private') == '1' then count(TEXTS_DROPPED) end
  redis.call('PEXPIRE', key, int(given.job_ttl + RECORD_GRACE_MS))  -- see `forget` in upkeep.lua
  redis.call('ZADD', ENDED .. state, int(at), id)
  forget_oldest(state, given.max_finished)
  count('ended:' .. state)
  publish(id)
end

local function fail(id, at, given, failure)
  redis.call('HSET', JOB .. id, 'code', failure.code, 'detail', failure.detail,
    'retryable', failure.retryable and '1' or '0', 'field', failure.field or '')
  close(id, 'failed', at, given)
end

-- How many jobs stand in front of a waiting one, and how long they take on average. Lanes that no
-- worker serves hold up nobody but their own jobs.
local function ahead_of(id, job, at)
  local jobs, seconds = 0, 0
  for _, needs in ipairs(redis.call('SMEMBERS', LANES .. job.queue)) do
    if needs == job.needs or live_workers(lane(job.queue, needs), at) > 0 then
      local before = redis.call('ZCOUNT', ready_key(job.queue, needs, job.high), '-inf', '(' .. job.created)
      if needs == job.needs then
        -- Only ids tell jobs of the very same microsecond apart.
        before = redis.call('ZRANK', ready_key(job.queue, needs, job.high), id) or before
      end
      if job.high ~= '1' then before = before + redis.call('ZCARD', ready_key(job.queue, needs, '1')) end
      jobs = jobs + before
      seconds = seconds + before * tonumber(mean_run(job.queue, kind_of(needs)) or job.mean_run or 0)
    end
  end
  return jobs, seconds
end

-- A job as callers see it: its own fields, and what an estimate of its end needs.
local function view(id)
  local job = read(id, 'state', 'kind', 'needs', 'attempts', 'progress', 'message', 'queue', 'high',
    'created', 'started', 'loaded', 'loaded_progress', 'reported', 'finished', 'code', 'detail',
    'retryable', 'field', 'profile', 'cancel', 'declined')
  if not job.state then return nil end
  local at = now()
  job.now, job.kind = int(at), job.kind or 'profile'
  if job.state == 'queued' then
    job.mean_run = mean_run(job.queue, job.kind)
    job.ahead, job.ahead_seconds = ahead_of(id, job, at)
    job.running = redis.call('ZCARD', LEASED .. job.queue)
    job.workers = live_workers(lane(job.queue, job.needs), at)
    job.others = live_workers(job.queue, at) - job.workers
  end
  return job
end

local operations = {}

-- Accept a job, once. given: id, kind, identity, needs, queue, high, pinned, private, owner, trace,
-- max_queued, resolve_ttl (µs); payload: the request.
-- -> {outcome = 'created' or 'kept', job}, or {outcome = 'full', mean_run, workers}
function operations.submit(given, request)
  local id, queue, by = given.id, given.queue, 'by:' .. given.owner
  local key, at = JOB .. id, now()
  local job = read(id, 'state', 'profile', 'finished', 'high', 'queue', 'needs', by)
  local function answer(outcome) return cjson.encode({outcome = outcome, job = view(id)}) end

  if (job.state == 'queued' or job.state == 'running') and job.needs then
    if job[by] ~= '1' then
      redis.call('HINCRBY', key, 'interest', 1)
      redis.call('HSET', key, by, '1')
    end
    redis.call('HDEL', key, 'cancel')
    if job.state == 'queued' and given.high and job.high ~= '1' then
      local waits = redis.call('ZREM', ready_key(job.queue, job.needs, '0'), id) == 1
      redis.call('HSET', key, 'high', '1')
      if waits then
        redis.call('ZADD', ready_key(job.queue, job.needs, '1'), redis.call('HGET', key, 'created'), id)
      end
    end
    return answer('kept')
  end
  local result = job.profile and PROFILE .. job.profile or EXPERIMENT .. id
  if job.state == 'done' and redis.call('EXISTS', result) == 1
      and (given.pinned or at - tonumber(job.finished) < given.resolve_ttl) then
    -- A server out of memory refuses the note of who may read this; the answer stands without it.
    if not job[by] then redis.pcall('HSET', key, by, '0') end
    return answer('kept')
  end

  local waiting = 0
  for _, needs in ipairs(redis.call('SMEMBERS', LANES .. queue)) do
    waiting = waiting + redis.call('ZCARD', ready_key(queue, needs, '0'))
      + redis.call('ZCARD', ready_key(queue, needs, '1'))
  end
  if waiting >= given.max_queued then
    return cjson.encode({outcome = 'full', workers = live_workers(lane(queue, given.needs), at),
      mean_run = mean_run(queue, given.kind)})
  end

  -- HSET comes first: a server out of memory refuses it, and then nothing is written at all.
  -- The request is not called `request`: workers of the first versions look there, whatever it needs.
  redis.call('HSET', key, 'state', 'queued', 'kind', given.kind, 'identity', given.identity,
    'needs', given.needs, 'queue', queue, 'high', given.high and '1' or '0', 'pinned', given.pinned and '1' or '0',
    'private', given.private and '1' or '0', 'document', request, 'trace', given.trace,
    'attempts', '0', 'created', int(at))
  if job.state then redis.call('ZREM', ENDED .. job.state, id) end
  if job.profile then redis.call('SREM', PROFILE .. job.profile .. JOBS_OF, id) end
  redis.call('HDEL', key, 'cancel', 'started', 'finished', 'code', 'detail', 'retryable', 'field',
    'profile')
  -- Earlier callers may still read the job, but only this one wants it now.
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 3) == 'by:' then redis.call('HSET', key, field, '0') end
  end
  redis.call('HSET', key, by, '1', 'interest', '1')
  redis.call('PERSIST', key)
  enqueue(id)
  count('submitted')
  return answer('created')
end

-- Read one job. given: id, and owner to read it only if that caller asked for it.
-- -> the job, or false
function operations.view(given)
  if given.owner and redis.call('HEXISTS', JOB .. given.id, 'by:' .. given.owner) == 0 then
    return false
  end
  local job = view(given.id)
  return job and cjson.encode(job) or false
end

-- Withdraw one caller's interest; the job ends when no caller is left.
-- given: id, owner, job_ttl, max_finished. -> the job, or false when this owner has no such job
function operations.cancel(given)
  local id, by = given.id, 'by:' .. given.owner
  local key, job = JOB .. id, read(id, 'state', 'queue', 'needs', 'high', by)
  if not job.state or not job[by] then return false end
  if (job.state == 'queued' or job.state == 'running') and job[by] == '1' then
    redis.call('PERSIST', key)
    redis.call('HSET', key, by, '0')
    if redis.call('HINCRBY', key, 'interest', -1) <= 0 then
      if job.state == 'queued' then
        redis.call('ZREM', ready_key(job.queue, job.needs, job.high), id)
        close(id, 'cancelled', now(), given)
      else
        redis.call('HSET', key, 'cancel', '1')
      end
    end
  end
  return cjson.encode(view(id))
end

-- Forget an ended job with what it left behind, if it is one that belongs to a caller.
-- given: id, owner. -> 1 when it was forgotten, else 0
function operations.drop(given)
  local id, by = given.id, 'by:' .. given.owner
  local job = read(id, 'state', 'kind', by)
  if job.kind ~= 'experiment' or not job[by] then return 0 end
  if redis.call('ZREM', ENDED .. job.state, id) == 0 then return 0 end
  redis.call('DEL', JOB .. id, EXPERIMENT .. id)
  redis.call('ZREM', EXPERIMENTS, id)
  return 1
end

-- The lane that holds the oldest job with this priority, among those that a worker knows; or nil
local function oldest_lane(queue, knows, high)
  local found, since
  for _, needs in ipairs(knows) do
    local key = ready_key(queue, needs, high)
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if first[1] and (not since or tonumber(first[2]) < since) then found, since = key, tonumber(first[2]) end
  end
  return found
end

-- Take one job, and count the attempt before it runs.
-- given: queue, knows (the needs that this worker meets), token, worker, lease (µs).
-- -> [{id, kind, identity, attempt, trace} as JSON, the request], or false when nothing waits
function operations.claim(given)
  local queue, last_key, at = given.queue, CLAIM .. given.worker, now()
  local function answer(id, job)
    local record = {id = id, kind = job.kind, identity = job.identity, trace = job.trace or '',
      attempt = tonumber(job.attempts)}
    return {cjson.encode(record), job.document}
  end
  -- The same token again: the answer was lost on its way. It gets the same job, not another one.
  local last = redis.call('GET', last_key)
  if last then
    local job = read(last, 'state', 'kind', 'identity', 'token', 'document', 'attempts', 'trace')
    if job.state == 'running' and job.token == given.token then return answer(last, job) end
  end
  for _, high in ipairs({'1', '0'}) do
    local ready = oldest_lane(queue, given.knows, high)
    while ready do
      local id = redis.call('ZPOPMIN', ready)[1]
      local key, job = JOB .. id, read(id, 'state', 'kind', 'identity', 'document', 'trace', 'created')
      if job.state == 'queued' and job.document then
        job.attempts = redis.call('HINCRBY', key, 'attempts', 1)
        redis.call('HSET', key, 'state', 'running', 'token', given.token, 'worker', given.worker,
          'started', int(at), 'lease', int(given.lease))
        redis.call('SET', last_key, id, 'PX', int(given.lease / 1000 + 1))
        redis.call('ZADD', LEASED .. queue, int(at + given.lease), id)
        if job.attempts == 1 then observe('wait', WAIT_BUCKETS, (at - tonumber(job.created)) / 1000000) end
        publish(id)
        return answer(id, job)
      end
      ready = oldest_lane(queue, given.knows, high)
    end
  end
  for _, needs in ipairs(given.knows) do redis.call('DEL', WAKE .. lane(queue, needs)) end
  return false
end

-- Renew a lease, report progress, learn of a cancel. given: id, token, lease (µs), progress (a text
-- with four decimals), message. -> 'lost', 'cancel' or 'ok'
function operations.beat(given)
  local key, at = JOB .. given.id, now()
  local job = read(given.id, 'token', 'state', 'queue', 'progress', 'message', 'cancel', 'loaded')
  if job.token ~= given.token or job.state ~= 'running' then return 'lost' end
  -- A running job has no TTL, so this changes nothing. But a script whose first write takes no memory
  -- goes through on a full server, and a lease must not be lost to a full server.
  redis.call('PERSIST', key)
  redis.call('ZADD', LEASED .. job.queue, int(at + given.lease), given.id)
  if job.progress ~= given.progress then redis.call('HSET', key, 'reported', int(at)) end
  if job.progress ~= given.progress or job.message ~= given.message then
    redis.call('HSET', key, 'progress', given.progress, 'message', given.message)
    publish(given.id)
  end
  -- Until now the job loaded its model, which says nothing of its pace.
  if not job.loaded and tonumber(given.progress) > 0 then
    redis.call('HSET', key, 'loaded', int(at), 'loaded_progress', given.progress)
  end
  return job.cancel and 'cancel' or 'ok'
end

-- Write a profile unless its id is taken: profiles are immutable. -> whether it is a new one
local function store_profile(job_id, at, profile_id, model, body, envelope, summary)
  local key, size = PROFILE .. profile_id, #body + #envelope + #summary
  local new = redis.call('EXISTS', key) == 0
  if new then
    redis.call('HSET', key, 'body', body, 'envelope', envelope, 'summary', summary, 'model', model,
      'size', int(size), 'created', int(at))
    redis.call('ZADD', PROFILES, int(at), profile_id)
    redis.call('ZADD', PROFILES_MODEL .. model, int(at), profile_id)
    redis.call('INCRBY', PROFILES_BYTES, int(size))
  end
  redis.call('ZADD', PROFILES_USED, int(at), profile_id)
  redis.call('SADD', key .. JOBS_OF, job_id)
  return new
end

-- Keep the result of an experiment as long as its job, and all of them below RESULTS_BYTES.
local function store_experiment(id, at, given, result, rows)
  local key = EXPERIMENT .. id
  redis.call('HSET', key, 'result', result, 'rows', rows, 'size', int(#result + #rows))
  redis.call('PEXPIRE', key, int(given.job_ttl))
  redis.call('ZADD', EXPERIMENTS, int(at), id)
  redis.call('ZREMRANGEBYSCORE', EXPERIMENTS, '-inf', int(at - given.job_ttl * 1000))
  local total = 0
  for _, other in ipairs(redis.call('ZREVRANGE', EXPERIMENTS, 0, -1)) do
    total = total + tonumber(redis.call('HGET', EXPERIMENT .. other, 'size') or 0)
    if total > RESULTS_BYTES and other ~= id then
      redis.call('DEL', EXPERIMENT .. other)
      redis.call('ZREM', EXPERIMENTS, other)
    end
  end
end

local function observe_run(queue, kind, seconds, new)
  observe('run', RUN_BUCKETS, seconds)
  -- A profile that was there already was found, not made: that tells nothing about the work.
  if not new then return end
  seconds = math.max(0, seconds)
  local name = MEAN_RUN .. lane(queue, kind)
  local mean = tonumber(redis.call('HGET', STATS, name) or seconds)
  redis.call('HSET', STATS, name, string.format('%.9g', mean + 0.2 * (seconds - mean)))
end

-- Record how a job ended. given: id, token, job_ttl, max_finished, outcome, and
--   for 'done'       late; for a profile also profile and model, payloads: body, envelope, summary;
--                    for an experiment payloads: result, rows
--   for 'failed'     failure = {code, detail, retryable, field}
--   for 'cancelled'  nothing more
-- `late`: the result waited on disk while Redis was away. The job ends if it waits again, but another
-- worker's lease stands. A profile is stored in any case, because profiles are content-addressed; an
-- experiment is its caller's alone, and goes when the job does not need it.
-- -> 'ok', 'lost', or 'again' (cancelled, but a caller has asked for it since: it waits again)
function operations.finish(given, ...)
  local id, at, outcome = given.id, now(), given.outcome
  local key, job = JOB .. id, read(id, 'token', 'state', 'kind', 'queue', 'needs', 'started', 'pinned',
    'interest', 'high')
  local mine = job.token == given.token and job.state == 'running'
  if not mine and not given.late then return 'lost' end
  local ends, new = mine or job.state == 'queued', true
  if outcome == 'done' then
    -- A write that frees memory comes first, and a full server lets the others follow: else a store
    -- that waiting requests have filled would never drain. A late result of a job that runs elsewhere
    -- has nothing to free; it is refused as a whole, and its worker keeps it.
    if ends then redis.call('HDEL', key, 'document') end
    if given.profile then
      new = store_profile(id, at, given.profile, given.model, ...)
    elseif ends then
      store_experiment(id, at, given, ...)
    end
    if not ends then return 'lost' end
  end
  redis.call('ZREM', LEASED .. job.queue, id)
  redis.call('ZREM', ready_key(job.queue, job.needs, job.high), id)
  if outcome == 'done' then
    redis.call('HSET', key, 'progress', '1', 'message', '')
    if given.profile then redis.call('HSET', key, 'profile', given.profile) end
    close(id, 'done', at, given)
    -- A pinned revision is answered from the cache for as long as its profile exists.
    if given.profile and job.pinned == '1' then redis.call('PERSIST', key) end
    if mine then observe_run(job.queue, job.kind, (at - tonumber(job.started)) / 1000000, new) end
  elseif outcome == 'failed' then
    fail(id, at, given, given.failure)
  elseif tonumber(job.interest or 0) > 0 then
    redis.call('HINCRBY', key, 'attempts', -1)
    enqueue(id)
    return 'again'
  else
    close(id, 'cancelled', at, given)
  end
  return 'ok'
end

-- Give a job back; the attempt does not count. given: id, token, job_ttl, max_finished, declined.
-- It can be claimed at once, unless this worker could not read it (`declined`): then it stands aside
-- until `mend` lets the workers of that time try. -> 'ok' or 'lost'
function operations.release(given)
  local id = given.id
  local key, job = JOB .. id, read(id, 'token', 'state', 'queue', 'cancel')
  if job.token ~= given.token or job.state ~= 'running' then return 'lost' end
  redis.call('ZREM', LEASED .. job.queue, id)
  if job.cancel then
    close(id, 'cancelled', now(), given)
    return 'ok'
  end
  redis.call('HINCRBY', key, 'attempts', -1)
  if given.declined then
    redis.call('HDEL', key, 'token', 'worker', 'started', 'loaded', 'loaded_progress', 'reported')
    redis.call('HSET', key, 'state', 'queued', 'progress', '0', 'message', '', 'declined', '1')
    count('declined')
    publish(id)
  else
    count('given_back')
    enqueue(id)
  end
  return 'ok'
end

-- A job's lease ran out. -> what became of the job: 'queued', 'failed' or 'cancelled'
local function lose(id, at, job, given)
  count('lost_leases')
  if job.cancel then
    close(id, 'cancelled', at, given)
    return 'cancelled'
  end
  if tonumber(job.attempts) < given.max_attempts then
    count('redeliveries')
    enqueue(id)
    return 'queued'
  end
  local detail = 'lease expired ' .. job.attempts .. ' times; last worker ' .. (job.worker or 'unknown')
  redis.call('XADD', DEAD, 'MAXLEN', DEAD_LETTERS, '*', 'job', id, 'code', 'worker_lost',
    'detail', detail, 'worker', job.worker or '', 'attempts', job.attempts)
  count('dead')
  fail(id, at, given, {code = 'worker_lost', detail = detail, retryable = true})
  return 'failed'
end

-- Move jobs that have waited long in a device's lane whose workers are gone to the other device's queue,
-- if some know them there; nobody else can run a job for an endpoint. A lane must have been without
-- workers for as long: its only worker may just be restarting. A lane that is empty and served by nobody
-- is forgotten.
local function move_stranded(queue, needs, at)
  local seen = tonumber(redis.call('HGET', STATS, LAST_SEEN .. lane(queue, needs)) or 0)
  if at - seen <= STRANDED_US or live_workers(lane(queue, needs), at) > 0 then return end
  for _, other in ipairs(queue == 'endpoints' and {} or DEVICE_QUEUES) do
    if other ~= queue and live_workers(lane(other, needs), at) > 0 then
      for _, high in ipairs({'1', '0'}) do
        local ready = ready_key(queue, needs, high)
        for _, id in ipairs(redis.call('ZRANGEBYSCORE', ready, '-inf', int(at - STRANDED_US), 'LIMIT', 0, 100)) do
          redis.call('ZREM', ready, id)
          redis.call('HSET', JOB .. id, 'queue', other)
          enqueue(id)
        end
      end
    end
  end
  if redis.call('EXISTS', ready_key(queue, needs, '0'), ready_key(queue, needs, '1')) == 0 then
    redis.call('SREM', LANES .. queue, needs)
    redis.call('HDEL', STATS, LAST_SEEN .. lane(queue, needs))
    redis.call('DEL', WAKE .. lane(queue, needs))
  end
end

-- Jobs whose lease ran out wait again, or fail after too many attempts. Then stranded jobs move.
-- given: max_attempts, job_ttl, max_finished.
-- -> a list of {outcome, id, trace, worker, attempts} as JSON, at most 100 per queue
function operations.expire(given)
  local at, found = now(), {}
  for _, queue in ipairs(QUEUES) do
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASED .. queue, '-inf', int(at), 'LIMIT', 0, 100)) do
      redis.call('ZREM', LEASED .. queue, id)
      local job = read(id, 'state', 'attempts', 'worker', 'cancel', 'trace')
      if job.state == 'running' then
        found[#found + 1] = cjson.encode({outcome = lose(id, at, job, given), id = id,
          trace = job.trace or '', worker = job.worker or 'unknown', attempts = tonumber(job.attempts)})
      end
    end
  end
  for _, queue in ipairs(QUEUES) do
    for _, needs in ipairs(redis.call('SMEMBERS', LANES .. queue)) do move_stranded(queue, needs, at) end
  end
  return found
end

-- Put back the jobs that say that they wait or run, but stand in no lane and under no lease: those
-- that a worker declined, for a newer one may live by now. Others there are only in a damaged or
-- hand-edited store, for operations are atomic. given: ids. -> ids of those others
function operations.mend(given)
  local mended = {}
  for _, id in ipairs(given.ids) do
    local job = read(id, 'state', 'queue', 'needs', 'high', 'document', 'declined')
    if job.needs and job.document
        and (job.state == 'queued' and not redis.call('ZSCORE', ready_key(job.queue, job.needs, job.high), id)
          or job.state == 'running' and not redis.call('ZSCORE', LEASED .. job.queue, id)) then
      if not job.declined then
        count('mended')
        mended[#mended + 1] = id
      end
      enqueue(id)
    end
  end
  return mended
end

-- A worker says that it lives, or with ttl 0 that it stops. given: name, ttl (ms), queues, knows;
-- payload: what it offers, as JSON. -> 'ok'
function operations.announce(given, facts)
  local name, ttl, at = given.name, given.ttl, now()
  local function note(index)
    -- First, because it frees memory: a full server must not take a worker for gone.
    redis.call('ZREMRANGEBYSCORE', WORKERS .. index, '-inf', int(at))
    redis.call('HSET', STATS, LAST_SEEN .. index, int(at))
    if ttl > 0 then
      redis.call('ZADD', WORKERS .. index, int(at + ttl * 1000), name)
    else
      redis.call('ZREM', WORKERS .. index, name)
    end
  end
  for _, queue in ipairs(given.queues) do
    note(queue)
    for _, needs in ipairs(given.knows) do
      note(lane(queue, needs))
      redis.call('SADD', LANES .. queue, needs)
    end
  end
  if ttl > 0 then redis.call('SET', WORKER .. name, facts, 'PX', int(ttl)) else redis.call('DEL', WORKER .. name) end
  return 'ok'
end

return operations[ARGV[1]](cjson.decode(ARGV[2]), unpack(ARGV, 3))
