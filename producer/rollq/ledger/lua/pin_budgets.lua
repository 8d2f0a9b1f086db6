-- Pin, before the run's first group, how many failures of a class kill a job.
-- reads and writes  run
-- ARGV   class failures, class failures, ...
-- reply  ok | conflict class failures (of the run)
local meta = prefix .. 'run'
local begun = redis_call('HEXISTS', meta, 'seq') + redis_call('HEXISTS', meta, 'budgeted') > 0
for i = 2, #ARGV, 2 do
  local theirs = budget(ARGV[i])
  if begun and theirs ~= tonumber(ARGV[i + 1]) then return { 'conflict', 'class', ARGV[i], 'failures', theirs } end
end
if not begun then
  redis_call('HSET', meta, 'budgeted', 1)
  for i = 2, #ARGV, 2 do redis_call('HSET', meta, 'budget:' .. ARGV[i], ARGV[i + 1]) end
end
return { 'ok' }
