-- The engines serve the policy of a training step now. Waiting producers look again: there may be room. A step that is
-- not above the published one is that of a restored checkpoint: the groups that were trained after it do not count.
-- `number` is that of an earlier publication which is said again, because Redis may have lost it; it changes nothing
-- when the ledger knows it, or a later one.
-- reads and writes  run versions held:train open:train group:<group> wake:<session>
-- ARGV   step version token number (0: a new publication)
-- reply  ok number (of publications) | name step (which has that version's name)
local meta, versions = prefix .. 'run', prefix .. 'versions'
local step, version, token, said = tonumber(ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5])
local was, published, last, batch, trained =
  unpack(redis_call('HMGET', meta, 'step', 'published', 'publication', 'batch', 'trained'))
was, published, trained = was and number(was, meta), number(published, meta), number(trained, meta)
if last == token or (said > 0 and published >= said) then return { 'ok', 'number', published } end
local of_name = redis_call('HGET', versions, version)
if of_name and number(of_name, versions) ~= step then return { 'name', 'step', of_name } end

-- After a step back, the weights of that step may sample tokens of groups that began at a later one.
local later = {}
if batch and was and step < was then
  for _, name in ipairs(redis_call('ZRANGE', prefix .. 'open:train', 0, -1)) do
    local group = prefix .. 'group:' .. name
    if number(field('group:' .. name, 'started'), group) > step then later[#later + 1] = group end
  end
end

allow_without_memory() -- the trainer acknowledges, which makes room, only after this
redis_call('HSET', meta, 'step', step, 'version', version, 'published', published + 1, 'publication', token)
redis_call('HSET', versions, version, step)
redis_call('HDEL', meta, 'lent')
for _, group in ipairs(later) do redis_call('HSET', group, 'started', step) end
if batch then
  batch = number(batch, meta)
  if was and step <= was then trained = math.min(trained, step * batch) end
  set_trained(trained, step, batch)
end
wake_producers()
return { 'ok', 'number', published + 1 }
