-- Pin how many groups may run ahead of the trainer. The run's first caller decides.
-- reads and writes  run held:train
-- ARGV   batch (groups of a training step) staleness (steps) running (most open groups; 0: no limit)
-- reply  ok | other batch staleness running (those of the run)
local meta = typed('run', 'hash')
local theirs = redis.call('HMGET', meta, 'batch', 'staleness', 'running', 'step')
typed('held:train', 'zset')
if not theirs[1] then
  redis.call('HSET', meta, 'batch', ARGV[2], 'staleness', ARGV[3], 'running', ARGV[4])
  set_trained(0, stored_number(theirs[4]), tonumber(ARGV[2]))
  return { 'ok' }
end
for i = 1, 3 do
  if theirs[i] ~= ARGV[i + 1] then return { 'other', theirs[1], theirs[2] or '', theirs[3] or '' } end
end
return { 'ok' }
