-- The jobs were sent, so they are due again only much later.
-- reads and writes  queued job:<job>
-- ARGV   ids
-- reply  ok
local queued, time = typed('queued', 'zset'), now()
allow_without_memory()
for i = 2, #ARGV do
  -- Only while it counts as being sent. If it was claimed, released or failed since, it has another time.
  local score = stored_number(redis.call('ZSCORE', queued, ARGV[i]))
  local not_before = stored_number(field('job:' .. ARGV[i], 'not_before'))
  if score > time and score <= time + constants.sending_s and not_before <= time then
    redis.call('ZADD', queued, time + constants.confirmed_s, ARGV[i])
  end
end
return { 'ok' }
