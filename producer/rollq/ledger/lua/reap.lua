-- Expired leases go back to queued, and what is due is handed to the caller to publish. A job that cannot be read, or
-- whose group cannot, is dead from now on; the others go on.
-- reads and writes  run leased queued dead count open:<purpose> ready:<purpose> held:<purpose> job:<job> group:<group>
-- ARGV   limit broker_empty (1: nothing waits at the broker) expire_until (after that time no lease expires: outage.lua)
-- reply  ids to publish now
check_indexes()
local limit, broker_empty, expire_until = tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
local leased, queued, time, due = prefix .. 'leased', prefix .. 'queued', now(), {}
local lease_s, publishing_s, confirmed_s = constants.lease_s, constants.publishing_s, constants.confirmed_s
allow_without_memory()

local function expire(id, attempt)
  local group, job = open_group(id), typed('job:' .. id, 'hash')
  local state, current, worker = unpack(redis.call('HMGET', job, 'state', 'attempt', 'worker'))
  if state ~= 'leased' or current ~= attempt then damaged(job, 'is not leased under attempt ' .. attempt) end
  -- No backoff: the job has already waited for its lease to end.
  fail_attempt(id, attempt, group, 'worker', 'lease of ' .. (worker or '?') .. ' expired', 'expiry', nil, time)
  count('expired')
end

-- Later than any lease can end: Redis's clock was set back.
for _, member in ipairs(redis.call('ZRANGEBYSCORE', leased, '(' .. seconds(time + lease_s), '+inf', 'LIMIT', 0, limit)) do
  redis.call('ZADD', leased, time + lease_s, member)
end
if time < expire_until then
  for purpose in pairs(PURPOSES) do
    if redis.call('EXISTS', prefix .. 'held:' .. purpose) == 1 then stamp(purpose, time) end
  end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', leased, '-inf', time, 'LIMIT', 0, limit)) do
    local id, attempt = string.match(member, '^(.*)#(%d+)$')
    local well, why = pcall(expire, id, attempt)
    if id and not well then end_unreadable(id, reason(why), time) end
    redis.call('ZREM', leased, member)
  end
end

local function check_queued(id)
  open_group(id)
  local state, attempt = unpack(redis.call('HMGET', typed('job:' .. id, 'hash'), 'state', 'attempt'))
  if state ~= 'queued' or not whole(attempt, 0, MOST) then damaged(prefix .. 'job:' .. id, 'is not a queued job') end
end

local function publish_between(from, to)
  if #due >= limit then return end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', queued, from, to, 'LIMIT', 0, limit - #due)) do
    local well, why = pcall(check_queued, id)
    if well then due[#due + 1] = id else end_unreadable(id, reason(why), time) end
  end
end

publish_between('-inf', time)
publish_between('(' .. seconds(time + confirmed_s), '+inf') -- the clock was set back
if broker_empty then
  -- Confirmed, but the message is gone. Younger ones may still be on their way; a backoff ends before this range begins.
  publish_between(time + constants.longest_backoff_s + publishing_s, time + confirmed_s - publishing_s)
end
for _, id in ipairs(due) do redis.call('ZADD', queued, time + publishing_s, id) end
return due
