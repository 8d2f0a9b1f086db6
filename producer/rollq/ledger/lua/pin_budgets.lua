-- Pin, before the run's first group, how many failures of a class kill a job.
-- reads and writes  run
-- ARGV   class failures, class failures, ...
-- reply  ok | conflict class failures (the run's)
local meta = typed('run', 'hash')
local begun = redis.call('HEXISTS', meta, 'seq') + redis.call('HEXISTS', meta, 'budgeted') > 0
for i = 2, #ARGV, 2 do
  local theirs = budget(ARGV[i])
  if begun and theirs ~= tonumber(ARGV[i + 1]) then return { 'conflict', ARGV[i], theirs } end
end
if not begun then
  redis.call('HSET', meta, 'budgeted', 1)
  for i = 2, #ARGV, 2 do redis.call('HSET', meta, 'budget:' .. ARGV[i], ARGV[i + 1]) end
end
return { 'ok' }
