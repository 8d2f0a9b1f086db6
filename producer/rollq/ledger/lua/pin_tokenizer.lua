-- The producer pins the tokenizer and the chat template of the run's episodes; else the first claim does.
-- reads and writes  run
-- ARGV   tokenizer_hash template_hash
-- reply  ok tokenizer template (the hashes of the run)
local meta = prefix .. 'run'
if redis_call('HEXISTS', meta, 'tokenizer_hash') == 0 then
  redis_call('HSET', meta, 'tokenizer_hash', ARGV[2], 'template_hash', ARGV[3])
end
local tokenizer, template = unpack(redis_call('HMGET', meta, 'tokenizer_hash', 'template_hash'))
return { 'ok', 'tokenizer', tokenizer, 'template', template }
