-- Where all jobs and groups are, at one instant. It is a script because a Redis that is out of memory refuses even
-- reads in MULTI.
-- reads and writes  run queued leased dead count open:<purpose> ready:<purpose> held:<purpose> (reads only)
-- ARGV   totals (1: with them)
-- reply  sealed, the number of entries in each index (in the order of common.lua), then totals (name value, ...)
check_indexes()
local reply = { redis.call('HEXISTS', typed('run', 'hash'), 'sealed') }
for _, name in ipairs(INDEXES) do reply[#reply + 1] = redis.call('ZCARD', prefix .. name) end
if ARGV[2] == '1' then reply[#reply + 1] = redis.call('HGETALL', typed('count', 'hash')) end
return reply
