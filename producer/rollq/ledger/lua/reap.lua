-- Expired leases go back to queued, and what is due is handed to the caller to send. A job that cannot be read, or
-- whose group cannot, is dead from now on; the others go on.
-- The last reap (run: beat) tells an outage: after a silence either Redis or all workers were away, so live workers get
-- the time to renew their leases first, and nothing expires until then (run: grace).
-- reads and writes  run leased queued dead count open:<purpose> ready:<purpose> held:<purpose> waiting:<purpose>
--                   wake:<token> job:<job> group:<group>
-- ARGV   limit, then the queues for which nothing waits at the broker
-- reply  for each job to send now: id queue priority; what was interrupted first, each in the order of the groups
check_indexes()
local limit, idle = tonumber(ARGV[2]), {}
for i = 3, #ARGV do idle[ARGV[i]] = true end
local leased, queued, time, due, rows = prefix .. 'leased', prefix .. 'queued', now(), {}, {}
local lease_s, sending_s, confirmed_s = constants.lease_s, constants.sending_s, constants.confirmed_s
if redis.call('EXISTS', typed('run', 'hash'), queued, leased) == 0 then return {} end
allow_without_memory()

local function in_grace()
  local beat, grace = stored_number(field('run', 'beat')), stored_number(field('run', 'grace'))
  -- A silence below 0 means that the clock was set back, so every lease ends later than it should.
  local reaped_lately = beat <= time and time - beat <= constants.outage_s
  if not (reaped_lately and grace <= time + constants.grace_s) then grace = time + constants.grace_s end
  redis.call('HSET', prefix .. 'run', 'beat', time, 'grace', grace)
  return time < grace
end

local function expire(id, lease)
  local group, job = open_group(id), typed('job:' .. id, 'hash')
  local state, worker = unpack(redis.call('HMGET', job, 'state', 'worker'))
  if state ~= 'leased' or lease_of(id) ~= lease then damaged(job, 'is not leased under ' .. lease) end
  -- No backoff: the job has already waited for its lease to end.
  fail_attempt(id, lease, group, 'worker', 'lease of ' .. (worker or '?') .. ' expired', 'expiry', nil, time)
  count('expired')
end

-- Later than any lease can end: Redis's clock was set back.
for _, held in ipairs(redis.call('ZRANGEBYSCORE', leased, '(' .. seconds(time + lease_s), '+inf', 'LIMIT', 0, limit)) do
  redis.call('ZADD', leased, time + lease_s, held)
end
if not in_grace() then
  for purpose in pairs(PURPOSES) do
    if redis.call('EXISTS', prefix .. 'held:' .. purpose) == 1 then stamp(purpose, time) end
  end
  for _, held in ipairs(redis.call('ZRANGEBYSCORE', leased, '-inf', time, 'LIMIT', 0, limit)) do
    local id, lease = string.match(held, '^([^#]*)#(.*)$')
    local well, why = pcall(expire, id, lease)
    if id and not well then end_unreadable(id, reason(why), time) end
    redis.call('ZREM', leased, held)
  end
end

-- A score between 0 and 1: a worker has given it back.
local function read_queued(id, score)
  local group = open_group(id)
  local state, attempt = unpack(redis.call('HMGET', typed('job:' .. id, 'hash'), 'state', 'attempt'))
  attempt = whole(attempt, 0, MOST)
  if state ~= 'queued' or not attempt then damaged(prefix .. 'job:' .. id, 'is not a queued job') end
  local order = (attempt > 0 or (score > 0 and score < 1)) and 'interrupted' or group.purpose
  return { id = id, queue = group.queue, seq = group.seq, priority = constants.priorities[order] }
end

-- With `of`, only jobs of these queues. So that others cannot hide them, it looks at more jobs than it needs.
local function send_between(from, to, of)
  for offset = 0, of and limit * 9 or 0, limit do
    local found = redis.call('ZRANGEBYSCORE', queued, from, to, 'WITHSCORES', 'LIMIT', offset, limit)
    for i = 1, #found, 2 do
      if #due >= limit then return end
      local id = found[i]
      local well, job = pcall(read_queued, id, tonumber(found[i + 1]))
      if not well then
        end_unreadable(id, reason(job), time)
      elseif not of or of[job.queue] then
        due[#due + 1] = job
      end
    end
    if #found < 2 * limit then return end
  end
end

send_between('-inf', time)
send_between('(' .. seconds(time + confirmed_s), '+inf') -- the clock was set back
if next(idle) then
  -- Confirmed, but the message is gone. Younger ones may still be on their way; a backoff ends before this range begins.
  send_between(time + constants.longest_backoff_s + sending_s, time + confirmed_s - sending_s, idle)
end
table.sort(due, function(a, b)
  if a.priority ~= b.priority then return a.priority < b.priority end
  if a.seq ~= b.seq then return a.seq < b.seq end
  return a.id < b.id
end)
for _, job in ipairs(due) do
  redis.call('ZADD', queued, time + sending_s, job.id)
  rows[#rows + 1] = { job.id, job.queue, job.priority }
end
return rows
