-- Journal entries that follow one another, and renew the lease unless two thirds of it are left. A repeat finds its own
-- entries.
-- reads and writes  run leased count job:<job> journal:<job> prompts:<group>
-- ARGV   id lease index, then the entries (journal.lua)
-- reply  ok | fenced | conflict length (of the journal)
local id, lease, index, job = ARGV[2], ARGV[3], tonumber(ARGV[4]), KEYS[1] .. 'job:' .. ARGV[2]
local leased, journal, held = KEYS[1] .. 'leased', KEYS[1] .. 'journal:' .. id, id .. '#' .. lease
local till = redis.pcall('ZSCORE', leased, held)
local got = redis.pcall('HMGET', job, 'state', 'deadline', 'reach', 'kept', 'turned')
local length, clock = redis.pcall('LLEN', journal), redis.call('TIME')
local time, entry_count = tonumber(clock[1]) + tonumber(clock[2]) / 1000000, #ARGV - 7
local prompts = ARGV[6] ~= '' and KEYS[1] .. 'prompts:' .. (string.match(id, '^[^/]+/([^/]+)/%d+$') or '')
local has_prompt = prompts and redis.pcall('HEXISTS', prompts, ARGV[6]) -- a table for a key of another type
local ends_at = math.min(time + constants.lease_s, tonumber(got[2]) or time)
local renewed = type(till) == 'string' and tonumber(till) >= time + constants.lease_s * 2 / 3

-- The common case: one turn, behind all that this attempt and those before it wrote. It makes none of the shared
-- functions. test_append.py compares it with what follows.
local reach, turned, kept = tonumber(got[3] or '0'), string.match(got[5] or '0', '^%d%d?%d?%d?$'), tonumber(got[4])
if type(till) == 'string' and got[1] == 'leased' and length == index and string.match(ARGV[5], '^0*1$')
  and type(has_prompt) ~= 'table' and entry_count < 100 and reach and reach < length + entry_count and turned and kept
  and (kept < 2 or kept < length) then
  -- As allow_without_memory() does.
  redis.call('DEL', KEYS[1] .. 'nothing')
  if has_prompt == 0 then redis.call('HSET', prompts, ARGV[6], ARGV[7]) end
  redis.call('RPUSH', journal, unpack(ARGV, 8))
  redis.call('HSET', job, 'turned', turned + 1, 'reach', length + entry_count, 'fail:worker', '0')
  if not renewed then redis.call('ZADD', leased, 'XX', 'GT', ends_at, held) end
  return { 'ok' }
end

-- rare: everything else
if not redis_call('ZSCORE', leased, held) then return fenced() end
got = redis_call('HMGET', job, 'state', 'deadline', 'reach', 'kept', 'turned')
if got[1] ~= 'leased' then return fenced() end
local entries, unfit = read_entries(5)
length, unfit = conflict(journal, index, entries)
if unfit then return { 'conflict', 'length', length } end
allow_without_memory()
local changes = push(id, journal, index, length, entries, got[3], got[4], got[5])
if #changes > 0 then redis_call('HSET', job, unpack(changes)) end
if not renewed then redis_call('ZADD', leased, 'XX', 'GT', ends_at, held) end
return { 'ok' }
