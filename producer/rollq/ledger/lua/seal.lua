-- The run takes no more groups. Waiting consumers look again: the next batch may be the short last one.
-- reads and writes  run waiting:<purpose> wake:<token>
-- ARGV   none
-- reply  ok
local meta = typed('run', 'hash')
redis.call('HSET', meta, 'sealed', 1)
for purpose in pairs(PURPOSES) do wake_consumers(purpose) end
return { 'ok' }
