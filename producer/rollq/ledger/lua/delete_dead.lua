-- Delete what a dead job held (body, journals). It stays counted as dead. With the last dead member of a dropped group
-- the graded members go too, because the group can never come back.
-- reads and writes  dead count group:<group> job:<job> journal:<job> journal:<job>#<attempt>
-- ARGV   id
-- reply  ok | unknown | state (of a job that is not dead)
local id, dead = ARGV[2], typed('dead', 'zset')
local job = typed('job:' .. id, 'hash')
local state, discarded = unpack(redis.call('HMGET', job, 'state', 'discarded'))
if discarded then return { 'ok' } end
if state and state ~= 'dead' then return { 'state', state } end
redis.call('ZREM', dead, id)
if not state then return { 'unknown' } end

free(id)
redis.call('HSET', job, 'discarded', 1)
local well, group = pcall(read_group, parse(id)) -- one that cannot be read has nothing to free
if well then
  group.discarded = redis.call('HINCRBY', group.key, 'discarded', 1)
  free_graded_members(group)
end
count('discarded')
return { 'ok' }
