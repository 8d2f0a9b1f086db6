-- Expired leases go back to queued, and whatever is due is handed to the caller to publish.
-- reads and writes  run leased queued dead count open:<purpose> ready:<purpose> job:<job> group:<group>
-- ARGV   limit broker_empty (1: nothing waits at the broker) lease_s publishing_s confirmed_s outage_s
-- reply  ids to publish now
sound('run', 'leased', 'queued', 'dead', 'open:train', 'open:eval', 'ready:train', 'ready:eval')
local limit, time, due = tonumber(ARGV[1]), now(), {}
local publishing, confirmed = tonumber(ARGV[4]), tonumber(ARGV[5])
local got = redis.call('HMGET', prefix .. 'run', 'reaped', 'grace')
local grace = tonumber(got[2]) or 0
if time - (tonumber(got[1]) or 0) > tonumber(ARGV[6]) then
  -- Nobody could renew while Redis was away: every lease gets the time to.
  grace = time + tonumber(ARGV[3])
end
even_without_memory()
redis.call('HSET', prefix .. 'run', 'reaped', time, 'grace', grace)

local function expire(member)
  local id, attempt = string.match(member, '^(.*)#(%d+)$')
  local group, job = read_group(group_name(id)), typed('job:' .. id, 'hash')
  local got = redis.call('HMGET', job, 'worker', 'fail:worker', 'state')
  if got[3] ~= 'leased' or not tonumber(got[2] or 0) then damaged(job, 'is not a leased job') end
  -- No backoff: the lease was one.
  fail_attempt(id, attempt, group, 'worker', 'lease of ' .. (got[1] or '?') .. ' expired', 'expiry', nil, time)
  count('expired')
end

if time >= grace then
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'leased', '-inf', time, 'LIMIT', 0, limit)) do
    local well, why = pcall(expire, member)
    if not well then
      redis.call('ZREM', prefix .. 'leased', member)
      local id, attempt = string.match(member, '^([^/]+/[^/]+/%d+)#(%d+)$')
      if id then bury(id, attempt, reason(why), time) end
    end
  end
end

local function publish(id)
  local got = redis.pcall('HMGET', prefix .. 'job:' .. id, 'state', 'attempt')
  if got[1] == 'queued' and tonumber(got[2] or nil) then
    due[#due + 1] = id
  elseif not string.match(id, '^[^/]+/[^/]+/%d+$') or got[1] == 'leased' or got[1] == 'done' or got[1] == 'dead' then
    redis.call('ZREM', prefix .. 'queued', id)
  else
    bury(id, 0, prefix .. 'job:' .. id .. ' is not a queued job', time)
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'queued', '-inf', time, 'LIMIT', 0, limit)) do publish(id) end
if ARGV[2] == '1' and #due < limit then
  -- Confirmed, but the message is gone. Younger ones may still be on their way; a backoff ends before this range begins.
  local from, to = time + 35, time + confirmed - publishing
  local gone = redis.call('ZRANGEBYSCORE', prefix .. 'queued', from, to, 'LIMIT', 0, limit - #due)
  for _, id in ipairs(gone) do publish(id) end
end
for _, id in ipairs(due) do redis.call('ZADD', prefix .. 'queued', time + publishing, id) end
return due
