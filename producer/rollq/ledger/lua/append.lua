-- Journal entries that follow one another, and renew the lease. A repeat finds its own entries.
-- reads and writes  run leased count job:<job> journal:<job> prompts:<group>
-- ARGV   id lease index, then the entries (journal.lua)
-- reply  ok | fenced | conflict length
local id, lease, index, entries = ARGV[2], ARGV[3], tonumber(ARGV[4]), read_entries(5)
local job, journal, held = prefix .. 'job:' .. id, prefix .. 'journal:' .. id, id .. '#' .. lease
if not checked('leased', 'zset', 'ZSCORE', held) then return fenced() end
local got = checked('job:' .. id, 'hash', 'HMGET', 'state', 'deadline', 'reach', 'kept', 'turned')
if got[1] ~= 'leased' then return fenced() end -- it was ended because it could not be read
local length, unfit = conflict(id, journal, index, entries)
if unfit then return { 'conflict', length } end
local time, deadline = now(), tonumber(got[2])
allow_without_memory()
local changes = push(id, journal, index, length, entries, got[3], got[4], got[5])
if #changes > 0 then redis.call('HSET', job, unpack(changes)) end
redis.call('ZADD', prefix .. 'leased', 'XX', 'GT', math.min(time + constants.lease_s, deadline or time), held)
return { 'ok' }
