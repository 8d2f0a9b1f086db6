-- Expired leases go back to queued, and whatever is due is handed to the caller to publish.
-- reads and writes  run leased queued dead count open:<purpose> ready:<purpose> job:<job> group:<group>
-- ARGV   limit broker_empty (1: nothing waits at the broker) lease_s publishing_s confirmed_s outage_s
-- reply  ids to publish now
sound('run', 'leased', 'queued', 'dead', 'count', 'open:train', 'open:eval', 'ready:train', 'ready:eval')
local limit, time, due = tonumber(ARGV[1]), now(), {}
local publishing, confirmed = tonumber(ARGV[4]), tonumber(ARGV[5])
local got = redis.call('HMGET', prefix .. 'run', 'reaped', 'grace')
local grace = tonumber(got[2]) or 0
if time - (tonumber(got[1]) or 0) > tonumber(ARGV[6]) then
  -- Nobody could renew while Redis was away: every lease gets the time to.
  grace = time + tonumber(ARGV[3])
end
redis.call('HSET', prefix .. 'run', 'reaped', time, 'grace', grace)

if time >= grace then
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'leased', '-inf', time, 'LIMIT', 0, limit)) do
    local id, attempt = string.match(member, '^(.*)#(%d+)$')
    local worker = redis.call('HGET', typed('job:' .. id, 'hash'), 'worker') or '?'
    -- The lease was the backoff.
    fail_attempt(id, attempt, read_group(group_name(id)), 'worker', 'lease of ' .. worker .. ' expired', 'expiry', nil, time)
    count('expired')
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'queued', '-inf', time, 'LIMIT', 0, limit)) do
  due[#due + 1] = id
end
if ARGV[2] == '1' and #due < limit then
  -- Confirmed, but the message is gone. Younger ones may still be on their way; a backoff ends before this range begins.
  local from, to = time + 35, time + confirmed - publishing
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'queued', from, to, 'LIMIT', 0, limit - #due)) do
    due[#due + 1] = id
  end
end
for _, id in ipairs(due) do redis.call('ZADD', prefix .. 'queued', time + publishing, id) end
return due
