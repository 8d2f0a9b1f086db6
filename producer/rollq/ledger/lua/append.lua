-- Journal entries that follow one another, and renew the lease. A repeat finds its own entries.
-- reads and writes  run leased count job:<job> journal:<job> prompts:<group>
-- ARGV   id lease index, then the entries (journal.lua)
-- reply  ok | fenced | conflict length
local id, lease, index, entries = ARGV[2], ARGV[3], tonumber(ARGV[4]), read_entries(5)
local leased, held = typed('leased', 'zset'), id .. '#' .. lease
if not redis.call('ZSCORE', leased, held) then return fenced() end
local job, journal = typed('job:' .. id, 'hash'), typed('journal:' .. id, 'list')
typed('prompts:' .. parse(id), 'hash')
local state, deadline = unpack(redis.call('HMGET', job, 'state', 'deadline'))
if state ~= 'leased' then return fenced() end -- it was ended because it could not be read
local length, unfit = conflict(journal, index, entries)
if unfit then return { 'conflict', length } end
local time = now()
allow_without_memory()
push(id, job, journal, index, length, entries)
redis.call('ZADD', leased, 'XX', 'GT', math.min(time + constants.lease_s, tonumber(deadline) or time), held)
return { 'ok' }
