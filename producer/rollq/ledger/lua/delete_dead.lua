-- What a dead job held (body, journals) is deleted; that it died stays counted. With the last dead member of a dropped
-- group the graded ones go too: the group can never come back.
-- reads and writes  dead count group:<group> job:<job> journal:<job> journal:<job>#<attempt>
-- ARGV   id
-- reply  ok | unknown | state (of a job that is not dead)
sound('dead')
local id = ARGV[1]
local job = typed('job:' .. id, 'hash')
local got = redis.call('HMGET', job, 'state', 'discarded')
if got[2] then return { 'ok' } end
if not redis.call('ZSCORE', prefix .. 'dead', id) then
  if got[1] then return { 'state', got[1] } end
  return { 'unknown' }
end
local name, sample = parse(id)
local well, group = pcall(read_group, name) -- one that is damaged has nothing to free
if not got[1] and not (well and sample < group.size) then
  redis.call('ZREM', prefix .. 'dead', id) -- no job ever had this name
  return { 'unknown' }
end

redis.call('ZREM', prefix .. 'dead', id)
free(id)
redis.call('HSET', job, 'state', 'dead', 'discarded', 1)
if well then
  group.discarded = redis.call('HINCRBY', group.key, 'discarded', 1)
  free_the_rest(group)
end
count('discarded')
return { 'ok' }
