-- How many failures of a class the run's jobs survive is settled before its first group.
-- reads and writes  run
-- ARGV   class failures, class failures, ...
-- reply  ok | conflict class failures (the run's)
sound('run')
local run = prefix .. 'run'
local begun = redis.call('HEXISTS', run, 'seq') + redis.call('HEXISTS', run, 'budgeted') > 0
for i = 1, #ARGV, 2 do
  local theirs = budget(ARGV[i])
  if begun and theirs ~= tonumber(ARGV[i + 1]) then return { 'conflict', ARGV[i], theirs } end
end
if not begun then
  redis.call('HSET', run, 'budgeted', 1)
  for i = 1, #ARGV, 2 do redis.call('HSET', run, 'budget:' .. ARGV[i], ARGV[i + 1]) end
end
return { 'ok' }
