-- Expired leases go back to queued, and what is due is handed to the caller to send.
-- The last reap (run: beat) tells an outage: after a silence either Redis or all workers were away, so live workers get
-- the time to renew their leases first, and nothing expires until then (run: grace).
-- reads and writes  run leased queued dead count open:<purpose> ready:<purpose> held:<purpose> waiting:<purpose>
--                   wake:<token> job:<job> group:<group>
-- ARGV   limit, then the queues for which nothing waits at the broker
-- reply  ok jobs (to send now, each as id queue priority; what was interrupted first, each in the order of the groups)
local limit, idle = tonumber(ARGV[2]), {}
for i = 3, #ARGV do idle[ARGV[i]] = true end
local leased, queued, time, due, rows = prefix .. 'leased', prefix .. 'queued', now(), {}, {}
local lease_s, sending_s, confirmed_s = constants.lease_s, constants.sending_s, constants.confirmed_s
if redis_call('EXISTS', prefix .. 'run', queued, leased) == 0 then return { 'ok', 'jobs', {} } end
allow_without_memory()


local function expire(id, lease)
  local worker = field('job:' .. id, 'worker') or '?'
  -- No backoff: the job has already waited for its lease to end.
  fail_attempt(id, lease, group_of(id), 'worker', 'lease of ' .. worker .. ' expired', 'expiry', nil, time)
  count('expired')
end

-- Later than any lease can end: Redis's clock was set back.
for _, held in ipairs(redis_call('ZRANGEBYSCORE', leased, '(' .. seconds(time + lease_s), '+inf', 'LIMIT', 0, limit)) do
  redis_call('ZADD', leased, time + lease_s, held)
end
if not in_grace(time) then
  stamp_held(time)
  for _, held in ipairs(redis_call('ZRANGEBYSCORE', leased, '-inf', time, 'LIMIT', 0, limit)) do
    local id, lease = string.match(held, '^([^#]*)#(.*)$')
    expire(id or damaged(leased, 'has no lease in ' .. held), lease)
  end
end

local function read_queued(id, score)
  local group = group_of(id)
  local attempt = number(field('job:' .. id, 'attempt'), prefix .. 'job:' .. id)
  -- A score between 0 and 1: a worker has given it back.
  local is_interrupted = attempt > 0 or (score > 0 and score < 1)
  local priority = constants.priorities[is_interrupted and 'interrupted' or group.purpose]
  return { id = id, queue = group.queue, seq = group.seq, priority = priority }
end

-- With `of`, only jobs of these queues. So that others cannot hide them, it looks at more jobs than it needs.
local function send_between(from, to, of)
  for offset = 0, of and limit * 9 or 0, limit do
    local page = redis_call('ZRANGEBYSCORE', queued, from, to, 'WITHSCORES', 'LIMIT', offset, limit)
    for i = 1, #page, 2 do
      if #due >= limit then return end
      local job = read_queued(page[i], tonumber(page[i + 1]))
      if not of or of[job.queue] then due[#due + 1] = job end
    end
    if #page < 2 * limit then return end
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
  redis_call('ZADD', queued, time + sending_s, job.id)
  rows[#rows + 1] = { job.id, job.queue, job.priority }
end
return { 'ok', 'jobs', rows }
