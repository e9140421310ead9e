#!/bin/sh
# Succeeds while the server in this container is ready. The route needs a key of any role: the file $1 holds it.
set -eu
printf 'Authorization: Bearer %s' "$(cat "$1")" \
    | curl --fail --silent --show-error --max-time 5 --output /dev/null --header @- "http://127.0.0.1:$PROLEPSIS_PORT/health/ready"
