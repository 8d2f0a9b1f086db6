-- A job that has not ended is dead, of class cancelled; whoever plays it is fenced.
-- reads and writes  run leased queued dead count open:<purpose> ready:<purpose> job:<job> group:<group>
-- ARGV   id reason
-- reply  ok | unknown | state (of a job that has ended)
sound('leased', 'queued', 'dead')
local id = ARGV[1]
local got = redis.call('HMGET', typed('job:' .. id, 'hash'), 'state', 'class')
if not got[1] then return { 'unknown' } end
if got[1] == 'dead' and got[2] == 'cancelled' then return { 'ok' } end
if got[1] ~= 'queued' and got[1] ~= 'leased' then return { 'state', got[1] } end
local group = open_group(id)
redis.call('ZREM', prefix .. 'queued', id)
fail_attempt(id, attempts(id), group, 'cancelled', ARGV[2], 'cancel', nil, now())
return { 'ok' }
