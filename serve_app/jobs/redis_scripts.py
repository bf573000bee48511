"""The Lua scripts of `serve_app.jobs.redis`, one for each atomic step.

Keys, after the prefix:

========================  ==============================================================================================
job:<job>                 hash: what is known of a job bodies:<job>              hash: items by their place, packed; one
that has ended is not there any more names:<job>               hash: what clients call items, where they do
results:<job>             hash: outcomes by place, packed; ended:<job> has their states losses:<job>              hash:
how many sessions ended while they had an item backlog:<job>:<model>     list: places of items that wait for a model
backlogs:<model>:<owner>  sorted set: an owner's jobs with such a list, by their last turn owners:<model>
sorted set: owners of those, by their last turn models                    set: models that something waits for; counts
has how much jobs:<owner>:<kind>       sorted set: jobs in their order live:<owner>              set: jobs that have not
ended overdue, old, untold      sorted sets: jobs by when they must have ended, are forgotten, and are to be told
sessions                  sorted set: by when they are over (server's time); held:<session> is a hash of what they have
states                    hash: jobs by state seq, turn                 numbers: the last job or file, and the last
turn, that was given one idem:<owner>:<key>        hash: the job of an idempotency key, and the digest of its request
file:<file>               hash: what is known of a file; content:<file> is what is in it files:<owner>
sorted set: files in their order oldfiles                  sorted set: files by when they are forgotten
========================  ==============================================================================================

Scripts derive key names, so the server must not be a cluster. Sessions expire by the server's clock, which all routers
share; ``ahead`` is the difference of the caller's time from the caller's clock.
"""

from __future__ import annotations

from typing import Final

_COMMON: Final = """
local p = ARGV[1]
local function key(...) return p .. table.concat({...}, ':') end
local function server_time(ahead)
  local now = redis.call('TIME')
  return now[1] + now[2] / 1e6 + ahead
end
local function set_state(job, to)
  local was = redis.call('HGET', key('job', job), 'state')
  redis.call('HSET', key('job', job), 'state', to)
  redis.call('HINCRBY', key('states'), was, -1)
  redis.call('HINCRBY', key('states'), to, 1)
end
local function is_live(job)
  local state = redis.call('HGET', key('job', job), 'state')
  return state == 'PENDING' or state == 'PROCESSING'
end
local function drop_backlog(job, model)
  local owner = redis.call('HGET', key('job', job), 'owner')
  redis.call('DEL', key('backlog', job, model))
  redis.call('ZREM', key('backlogs', model, owner), job)
  if redis.call('EXISTS', key('backlogs', model, owner)) == 0 then redis.call('ZREM', key('owners', model), owner) end
  if redis.call('EXISTS', key('owners', model)) == 0 then redis.call('SREM', key('models'), model) end
end
local function wait_again(job, model, places)
  local owner = redis.call('HGET', key('job', job), 'owner')
  for _, place in ipairs(places) do redis.call('LPUSH', key('backlog', job, model), place) end
  redis.call('HINCRBY', key('counts'), model, #places)
  redis.call('ZADD', key('backlogs', model, owner), 'NX', 0, job)
  redis.call('ZADD', key('owners', model), 'NX', 0, owner)
  redis.call('SADD', key('models'), model)
end
local function finish(job, state, now, code)
  local hash = key('job', job)
  set_state(job, state)
  local keep = tonumber(redis.call('HGET', hash, 'keep_s'))
  redis.call('HSET', hash, 'ended', now, 'kept_until', string.format('%.6f', now + keep), 'code', code)
  redis.call('ZREM', key('overdue'), job)
  redis.call('ZADD', key('old'), now + keep, job)
  redis.call('SREM', key('live', redis.call('HGET', hash, 'owner')), job)
  if redis.call('HGET', hash, 'callback') ~= '' then
    redis.call('HSET', hash, 'told', 'pending')
    redis.call('ZADD', key('untold'), now, job)
  end
  for _, model in ipairs(cjson.decode(redis.call('HGET', hash, 'models'))) do
    redis.call('HINCRBY', key('counts'), model, -redis.call('LLEN', key('backlog', job, model)))
    drop_backlog(job, model)
  end
end
local function end_overdue(now, limit)
  local overdue = redis.call('ZRANGEBYSCORE', key('overdue'), '-inf', now, 'LIMIT', 0, limit)
  for _, job in ipairs(overdue) do finish(job, 'ERROR', now, 'deadline_exceeded') end
  return overdue
end
local function end_session(session, lost)
  local held = redis.call('HGETALL', key('held', session))
  local backlogs = {}
  for i = 1, #held, 2 do
    local job, place, model = string.match(held[i], '^([^/]+)/(%d+)/(.*)$')
    if lost == 1 then redis.call('HINCRBY', key('losses', job), place, 1) end
    if is_live(job) then
      local backlog = cjson.encode({job, model})
      backlogs[backlog] = backlogs[backlog] or {}
      table.insert(backlogs[backlog], tonumber(place))
    end
  end
  for backlog, places in pairs(backlogs) do
    local of = cjson.decode(backlog)
    table.sort(places, function(a, b) return a > b end)
    wait_again(of[1], of[2], places)
  end
  redis.call('DEL', key('held', session))
  redis.call('ZREM', key('sessions'), session)
end
"""

_ALSO_WHEN_FULL: Final = """
redis.call('DEL', key('unused'))  -- a server at its maxmemory refuses no write of a script that has written before
"""
"""What ends, moves or deletes must go on then: otherwise nothing would ever be deleted."""

_KNOWN: Final = """
local function known(owner, idem, digest)
  local name = key('idem', owner, idem)
  local before = redis.call('HMGET', name, 'job', 'digest')
  if not before[1] then return nil end
  redis.call('HSET', name, 'job', before[1])  -- a write: WAITAOF waits until this, and what was before it, is on disk
  return {before[2] == digest and 'same' or 'other', before[1]}
end
"""

KNOWN: Final = (
    _COMMON
    + _ALSO_WHEN_FULL
    + _KNOWN
    + """
-- prefix, owner, idempotency key, digest
return known(ARGV[2], ARGV[3], ARGV[4]) or {'new', ''}
"""
)

CREATE: Final = (
    _COMMON
    + _KNOWN
    + """
-- prefix, job, owner, kind, idempotency key, digest, most jobs, fields...
local job, owner, kind, idem, digest = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
if idem ~= '' then
  local before = known(owner, idem, digest)
  if before then return before end
end
if redis.call('SCARD', key('live', owner)) >= tonumber(ARGV[7]) then return {'many', ''} end
local hash = key('job', job)
for i = 8, #ARGV, 2 do redis.call('HSET', hash, ARGV[i], ARGV[i + 1]) end
local seq = redis.call('INCR', key('seq'))
redis.call('HSET', hash, 'seq', seq)
redis.call('HINCRBY', key('states'), 'PENDING', 1)
redis.call('ZADD', key('jobs', owner, kind), seq, job)
redis.call('SADD', key('live', owner), job)
redis.call('ZADD', key('overdue'), redis.call('HGET', hash, 'expires'), job)
if idem ~= '' then redis.call('HSET', key('idem', owner, idem), 'job', job, 'digest', digest) end
redis.call('PERSIST', key('bodies', job))
redis.call('PERSIST', key('names', job))
for _, model in ipairs(cjson.decode(redis.call('HGET', hash, 'models'))) do
  redis.call('PERSIST', key('backlog', job, model))
  redis.call('HINCRBY', key('counts'), model, redis.call('LLEN', key('backlog', job, model)))
  redis.call('ZADD', key('backlogs', model, owner), 0, job)
  redis.call('ZADD', key('owners', model), 'NX', 0, owner)
  redis.call('SADD', key('models'), model)
end
return {'new', job}
"""
)

CANCEL: Final = (
    _COMMON
    + _ALSO_WHEN_FULL
    + """
-- prefix, job, now
if is_live(ARGV[2]) then finish(ARGV[2], 'CANCELLED', ARGV[3], '') end
return redis.call('EXISTS', key('job', ARGV[2]))
"""
)

BEGIN_SESSION: Final = (
    _COMMON
    + _ALSO_WHEN_FULL
    + """
-- prefix, session, ahead, lease
redis.call('ZADD', key('sessions'), string.format('%.6f', server_time(ARGV[3]) + ARGV[4]), ARGV[2])
"""
)

END_SESSION: Final = _COMMON + _ALSO_WHEN_FULL + "end_session(ARGV[2], 0)"

EXCHANGE: Final = (
    _COMMON
    + _ALSO_WHEN_FULL
    + """
-- prefix, session, now, {ahead, lease}, turn, room, others, bytes, running, most overdue, {item, state, packed}...
local session, now, turn = ARGV[2], ARGV[3], tonumber(ARGV[5])
local room, others, nbytes = cjson.decode(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local running, runs = cjson.decode(ARGV[9]), {}
if running ~= cjson.null then
  for _, item in ipairs(running) do runs[item] = true end
end
if not redis.call('ZSCORE', key('sessions'), session) then return {'over'} end
local lease_of = cjson.decode(ARGV[4])
redis.call('ZADD', key('sessions'), string.format('%.6f', server_time(lease_of[1]) + lease_of[2]), session)
local held, discarded, finished, ended, leases = key('held', session), 0, {}, {}, {}
for i = 11, #ARGV, 3 do
  local item, state = ARGV[i], ARGV[i + 1]
  local job, place, model = string.match(item, '^([^/]+)/(%d+)/(.*)$')
  if redis.call('HDEL', held, item) == 0 then
    discarded = discarded + 1
  elseif not is_live(job) then
    discarded = discarded + 1
    ended[job] = true
  elseif state == 'PENDING' then
    wait_again(job, model, {place})
  else
    redis.call('HSET', key('results', job), place, ARGV[i + 2])
    redis.call('HSET', key('ended', job), place, state)
    redis.call('HDEL', key('bodies', job), place)
    local hash = key('job', job)
    redis.call('HINCRBY', hash, state == 'COMPLETED' and 'completed' or 'failed', 1)
    local done = redis.call('HMGET', hash, 'total', 'completed', 'failed', 'expires')
    if tonumber(done[2]) + tonumber(done[3]) == tonumber(done[1]) then
      local failed = tonumber(done[3]) > 0
      local late = failed and tonumber(now) >= tonumber(done[4])
      finish(job, failed and 'ERROR' or 'COMPLETED', now, late and 'deadline_exceeded' or '')
      table.insert(finished, job)
    end
  end
end
local overdue = end_overdue(now, ARGV[10])
for _, job in ipairs(overdue) do table.insert(finished, job) end
local function lease(item, job, place)
  local of = redis.call('HMGET', key('job', job), 'owner', 'expires', 'headers')
  local losses = redis.call('HGET', key('losses', job), place) or '0'
  table.insert(leases, {item, of[1], of[2], of[3], losses, redis.call('HGET', key('bodies', job), place)})
end
local mine = redis.call('HGETALL', held)
for i = 1, #mine, 2 do
  local job, place, model = string.match(mine[i], '^([^/]+)/(%d+)/(.*)$')
  local since = tonumber(mine[i + 1])
  if not is_live(job) then
    redis.call('HDEL', held, mine[i])
    ended[job] = true
  elseif since == turn then  -- leased before by this exchange, whose answer did not arrive
    lease(mine[i], job, place)
  elseif since < turn and running ~= cjson.null and not runs[mine[i]] then
    redis.call('HDEL', held, mine[i])
    wait_again(job, model, {place})
  end
end
local no_more = #leases > 0 or #overdue == tonumber(ARGV[10])
local models = redis.call('SMEMBERS', key('models'))
for n = 1, #models do
  local model = models[(n + turn) % #models + 1]  -- each has the first turn at the bytes once
  local left = model == '' and others or room[model] or 0
  local full = no_more
  local each = math.max(1, math.floor(left / math.max(1, redis.call('ZCARD', key('owners', model)))))
  while left > 0 and not full do
    local owner = redis.call('ZRANGE', key('owners', model), 0, 0)[1]
    if not owner then break end
    local job = redis.call('ZRANGE', key('backlogs', model, owner), 0, 0)[1]
    local backlog = key('backlog', job, model)
    local now_served = redis.call('INCR', key('turn'))
    redis.call('ZADD', key('backlogs', model, owner), now_served, job)
    redis.call('ZADD', key('owners', model), now_served, owner)
    for _ = 1, math.min(each, left) do
      local place = redis.call('LINDEX', backlog, 0)
      if not place then break end
      local size = redis.call('HSTRLEN', key('bodies', job), place)
      if size > nbytes and #leases > 0 then
        full = true
        break
      end
      nbytes = nbytes - size
      redis.call('LPOP', backlog)
      redis.call('HINCRBY', key('counts'), model, -1)
      local item = job .. '/' .. place .. '/' .. model
      redis.call('HSET', held, item, turn)
      if redis.call('HGET', key('job', job), 'state') == 'PENDING' then
        set_state(job, 'PROCESSING')
        redis.call('HSET', key('job', job), 'started', now)
      end
      lease(item, job, place)
      left = left - 1
    end
    if redis.call('EXISTS', backlog) == 0 then drop_backlog(job, model) end
  end
end
local gone = {}
for job, _ in pairs(ended) do table.insert(gone, job) end
return {'ok', discarded, gone, finished, leases}
"""
)

SWEEP: Final = (
    _COMMON
    + _ALSO_WHEN_FULL
    + """
-- prefix, now, limit, ahead
local now, limit = ARGV[2], tonumber(ARGV[3])
local before = '(' .. now
local over = '(' .. string.format('%.6f', server_time(ARGV[4]))
for _, session in ipairs(redis.call('ZRANGEBYSCORE', key('sessions'), '-inf', over)) do end_session(session, 1) end
local swept = #end_overdue(now, limit)
while swept < limit do
  local job = redis.call('ZRANGEBYSCORE', key('old'), '-inf', before, 'LIMIT', 0, 1)[1]
  if not job then break end
  local left = false
  for _, kind in ipairs({'results', 'bodies'}) do
    local from = key(kind, job)
    local places = redis.call('HRANDFIELD', from, math.max(1, limit - swept))
    if #places > 0 then
      redis.call('HDEL', from, unpack(places))
      redis.call('HDEL', key('ended', job), unpack(places))
      redis.call('HDEL', key('names', job), unpack(places))
      swept = swept + #places
    end
    left = left or redis.call('EXISTS', from) == 1
    if swept >= limit then break end
  end
  if not left and swept < limit then
    local hash = key('job', job)
    local of = redis.call('HMGET', hash, 'owner', 'kind', 'idempotency_key', 'state')
    redis.call('ZREM', key('old'), job)
    redis.call('ZREM', key('untold'), job)
    redis.call('ZREM', key('jobs', of[1], of[2]), job)
    redis.call('HINCRBY', key('states'), of[4], -1)
    if of[3] ~= '' then redis.call('DEL', key('idem', of[1], of[3])) end
    redis.call('DEL', hash, key('ended', job), key('names', job), key('losses', job))
    swept = swept + 1
  end
end
for _, file in ipairs(redis.call('ZRANGEBYSCORE', key('oldfiles'), '-inf', before, 'LIMIT', 0, limit - swept)) do
  redis.call('ZREM', key('files', redis.call('HGET', key('file', file), 'owner')), file)
  redis.call('ZREM', key('oldfiles'), file)
  redis.call('UNLINK', key('file', file), key('content', file))
  swept = swept + 1
end
return swept
"""
)

DUE: Final = (
    _COMMON
    + _ALSO_WHEN_FULL
    + """
-- prefix, now, limit, until
local due = redis.call('ZRANGEBYSCORE', key('untold'), '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])
for _, job in ipairs(due) do redis.call('ZADD', key('untold'), ARGV[4], job) end
return due
"""
)

TOLD: Final = (
    _COMMON
    + _ALSO_WHEN_FULL
    + """
-- prefix, job, told, attempts, due
local hash = key('job', ARGV[2])
if redis.call('HGET', hash, 'told') == 'pending' then
  redis.call('HSET', hash, 'told', ARGV[3], 'attempts', ARGV[4])
  if ARGV[3] == 'pending' then redis.call('ZADD', key('untold'), ARGV[5], ARGV[2])
  else redis.call('ZREM', key('untold'), ARGV[2]) end
end
"""
)
