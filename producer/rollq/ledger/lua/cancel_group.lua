-- The members of a group that have not ended are dead, of class cancelled; workers that play them are fenced. The group
-- is then ready or dropped.
-- reads and writes  run leased queued dead count open:<purpose> ready:<purpose> waiting:<purpose> wake:<session>
--                   group:<group> job:<job>
-- ARGV   group reason
-- reply  ok cancelled (members) | unknown
local name, why, time, cancelled = ARGV[2], ARGV[3], now(), 0
if redis_call('EXISTS', prefix .. 'group:' .. name, prefix .. 'acked:' .. name) == 0 then return { 'unknown' } end
if redis_call('EXISTS', prefix .. 'group:' .. name) == 0 then return { 'ok', 'cancelled', 0 } end
local group = read_group(name)
if group.state ~= 'open' then return { 'ok', 'cancelled', 0 } end
allow_without_memory()
for sample = 0, group.members - 1 do
  local id = member(name, sample)
  local state = field('job:' .. id, 'state')
  if state == 'queued' or state == 'leased' then
    redis_call('ZREM', prefix .. 'queued', id)
    fail_attempt(id, lease_of(id), group, 'cancelled', why, 'cancel', nil, time)
    cancelled = cancelled + 1
  end
end
return { 'ok', 'cancelled', cancelled }
