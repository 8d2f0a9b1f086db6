#!/bin/sh
# Makes what docker-compose.yml needs and keeps out of images and environments: one file for each secret, and .env from
# .env.example where there is none. What is there is kept; only redis-users.acl is written again, so run it after each
# upgrade too. To change a password, delete its file.
#
#   deploy/secrets.sh [FOLDER]     # ./secrets
#
# For a Redis of your own, write its addresses into worker-url, producer-url, trainer-url and flower-url (docs/deploy.md).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-./secrets}
mkdir -p "$folder" && chmod 700 "$folder" # the files are readable, because containers read them as users of their own

put() { # NAME CONTENT
  if [ ! -s "$folder/$1" ]; then
    printf '%s\n' "$2" >"$folder/$1"
    chmod 444 "$folder/$1"
  fi
}
# ROLLQ_*_PASSWORD and FLOWER_BASIC_AUTH, of letters and digits.
eval "$("$here/redis/passwords.sh")"
put worker-url "redis://worker:$ROLLQ_WORKER_PASSWORD@redis:6379/0"
put producer-url "redis://producer:$ROLLQ_PRODUCER_PASSWORD@redis:6379/0"
put trainer-url "redis://trainer:$ROLLQ_TRAINER_PASSWORD@redis:6379/0"
put flower-url "redis://flower:$ROLLQ_FLOWER_PASSWORD@redis:6379/0"
put flower-login "$FLOWER_BASIC_AUTH"
put grafana-password "$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')"

password() { # USER: of its file
  sed -n "s|^redis://$1:\([^@]*\)@redis:6379/0\$|\1|p" "$folder/$1-url"
}
if [ -n "$(password worker)" ]; then # the Redis of compose
  rm -f "$folder/redis-users.acl"
  ROLLQ_WORKER_PASSWORD=$(password worker) ROLLQ_PRODUCER_PASSWORD=$(password producer) \
    ROLLQ_TRAINER_PASSWORD=$(password trainer) ROLLQ_FLOWER_PASSWORD=$(password flower) \
    "$here/redis/users.sh" >"$folder/redis-users.acl"
  chmod 444 "$folder/redis-users.acl"
fi
[ -e "$folder/redis-users.acl" ] || : >"$folder/redis-users.acl"
if [ ! -e "$here/../.env" ]; then
  sed "s|^ROLLQ_SECRETS=.*|ROLLQ_SECRETS=$folder|" "$here/../.env.example" >"$here/../.env"
fi
echo "$folder holds the secrets. Flower: user and password are in $folder/flower-login"
