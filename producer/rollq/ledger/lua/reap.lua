-- Expired leases go back to queued, and whatever is due is handed to the caller to publish.
-- reads and writes  run leased queued dead count open:<purpose> ready:<purpose> held:<purpose> job:<job> group:<group>
-- ARGV   limit broker_empty (1: nothing waits at the broker) expire_until (after that time no lease expires: pulse.lua)
--        lease_s publishing_s confirmed_s
-- reply  ids to publish now
sound('run', 'leased', 'queued', 'dead', 'open:train', 'open:eval', 'ready:train', 'ready:eval')
local limit, time, due = tonumber(ARGV[1]), now(), {}
local lease, publishing, confirmed = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local leased, queued = prefix .. 'leased', prefix .. 'queued'
even_without_memory()

-- Whether nobody plays the job under this attempt: the lease was never given, or has ended.
local function stale(id, attempt)
  local got = redis.pcall('HMGET', prefix .. 'job:' .. id, 'state', 'attempt')
  if not JOB_STATES[got[1]] then return false end
  return got[1] ~= 'leased' or got[2] ~= attempt and whole(got[2], 0, MOST) ~= nil
end

local function expire(id, attempt)
  local group, job = open_group(id), prefix .. 'job:' .. id
  local got = redis.call('HMGET', job, 'worker', 'attempt', 'state')
  if got[3] ~= 'leased' or got[2] ~= attempt then damaged(job, 'is not a leased job') end
  -- No backoff: the lease was one.
  fail_attempt(id, attempt, group, 'worker', 'lease of ' .. (got[1] or '?') .. ' expired', 'expiry', nil, time)
  count('expired')
end

-- Later than any lease can end: Redis's clock was set back.
for _, member in ipairs(redis.call('ZRANGEBYSCORE', leased, '(' .. seconds(time + lease), '+inf', 'LIMIT', 0, limit)) do
  redis.call('ZADD', leased, time + lease, member)
end
if time < tonumber(ARGV[3]) then
  for purpose in pairs(PURPOSES) do
    if redis.pcall('EXISTS', prefix .. 'held:' .. purpose) == 1 then stamp(purpose, time) end
  end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', leased, '-inf', time, 'LIMIT', 0, limit)) do
    local id, attempt = string.match(member, '^(.*)#(%d+)$')
    local well, why = true
    if id and parse(id) and not stale(id, attempt) then well, why = pcall(expire, id, attempt) end
    redis.call('ZREM', leased, member)
    if not well then bury(id, attempts(id), reason(why), time) end
  end
end

local function publish(id)
  local got = redis.pcall('HMGET', prefix .. 'job:' .. id, 'state', 'attempt')
  local name, sample = parse(id)
  if not name or got[1] ~= 'queued' and JOB_STATES[got[1]] then
    redis.call('ZREM', queued, id)
  elseif got[1] == 'queued' and whole(got[2], 0, MOST) and readable_group(name, time, sample + 1) then
    due[#due + 1] = id
  else
    bury(id, attempts(id), prefix .. 'job:' .. id .. ' is not a queued job', time)
  end
end

local function publish_between(from, to)
  if #due >= limit then return end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', queued, from, to, 'LIMIT', 0, limit - #due)) do publish(id) end
end

publish_between('-inf', time)
publish_between('(' .. seconds(time + confirmed), '+inf') -- as above
if ARGV[2] == '1' then
  -- Confirmed, but the message is gone. Younger ones may still be on their way; a backoff ends before this range begins.
  publish_between(time + 35, time + confirmed - publishing)
end
for _, id in ipairs(due) do redis.call('ZADD', queued, time + publishing, id) end
return due
