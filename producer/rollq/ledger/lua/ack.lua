-- The groups of these jobs are trained on: all or none. Bodies and journals are deleted; ids and digests are kept.
-- reads and writes  held:<purpose> hold:<token> count group:<group> job:<job> journal:<job> journal:<job>#<attempt>
-- ARGV   token, then job ids
-- reply  ok | lost group
check_indexes()
local token, groups = ARGV[2], {}
local hold = typed('hold:' .. token, 'set')
for i = 3, #ARGV do
  local name = parse(ARGV[i])
  typed('job:' .. ARGV[i], 'hash')
  if not groups[name] then
    local group = read_group(name)
    if group.token ~= token or (group.state ~= 'held' and group.state ~= 'acked') then return { 'lost', name } end
    groups[name] = group
  end
end
allow_without_memory()
for name, group in pairs(groups) do
  if group.state == 'held' then
    redis.call('HSET', group.key, 'state', 'acked')
    redis.call('ZREM', prefix .. 'held:' .. group.purpose, name)
    redis.call('SREM', hold, name)
    count('groups_acked')
  end
end
for i = 3, #ARGV do
  local id = ARGV[i]
  if groups[parse(id)].state == 'held' then
    local job = prefix .. 'job:' .. id
    if redis.call('HSETNX', job, 'acked', token) == 1 then count('delivered') else count('duplicates') end
    for attempt in string.gmatch(redis.call('HGET', job, 'aside') or '', '%d+') do
      redis.call('DEL', prefix .. 'journal:' .. id .. '#' .. attempt)
    end
    redis.call('DEL', prefix .. 'journal:' .. id)
    redis.call('HDEL', job, 'body', 'aside')
  end
end
return { 'ok' }
