-- Pin how many groups may run ahead of the trainer. The run's first caller decides.
-- reads and writes  run held:train
-- ARGV   batch (groups of a training step) staleness (steps) running (most open groups; 0: no limit)
-- reply  ok | other batch staleness running (of the run)
local meta = prefix .. 'run'
local theirs = redis_call('HMGET', meta, 'batch', 'staleness', 'running', 'step')
if not theirs[1] then
  redis_call('HSET', meta, 'batch', ARGV[2], 'staleness', ARGV[3], 'running', ARGV[4])
  set_trained(0, number(theirs[4], meta), tonumber(ARGV[2]))
  return { 'ok' }
end
local batch, staleness, running = number(theirs[1], meta), number(theirs[2], meta), number(theirs[3], meta)
if batch ~= tonumber(ARGV[2]) or staleness ~= tonumber(ARGV[3]) or running ~= tonumber(ARGV[4]) then
  return { 'other', 'batch', batch, 'staleness', staleness, 'running', running }
end
return { 'ok' }
