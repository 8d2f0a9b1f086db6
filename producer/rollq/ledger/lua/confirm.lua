-- The jobs were sent, so they are due again only much later.
-- reads and writes  queued job:<job>
-- ARGV   ids
-- reply  ok
local queued, time = prefix .. 'queued', now()
allow_without_memory()
for i = 2, #ARGV do
  -- Only while it counts as being sent. If it was claimed, released or failed since, it has another time.
  local score = number(redis_call('ZSCORE', queued, ARGV[i]), queued)
  local not_before = number(field('job:' .. ARGV[i], 'not_before'), prefix .. 'job:' .. ARGV[i])
  if score > time and score <= time + constants.sending_s and not_before <= time then
    redis_call('ZADD', queued, time + constants.confirmed_s, ARGV[i])
  end
end
return { 'ok' }
