#!/bin/sh
# Builds an image from wheels: those of this checkout and all that they need, which are collected in build/image first.
#   deploy/container/build.sh [TAG]        default: localhost/prolepsis
# From the environment:
# EXTRAS       extras of the package; without `engine`, a server in front of engines elsewhere
# DEVICE       cpu (default) | cuda: which build of torch. CUDA's libraries come with it; the host brings NVIDIA's driver
# TORCH_INDEX  package index that torch comes from; default: by DEVICE
# WHEELS       folder of wheels that are taken as they are, such as a release's
# PYTHON       interpreter of the version that the base has; default: that of .venv, else python3
# BASE         an image with Python and libstdc++, or `debian`: one that is made here, without a registry (mmdebstrap, buildah)
# BUILD_BASE   the same with binutils besides, of which nothing remains in the image
# BUILDER      default: the first of `docker build`, `podman build` and `buildah build` that is there
# Inside a container buildah needs BUILDAH_ISOLATION=chroot and STORAGE_DRIVER=vfs.
set -eu
cd "$(dirname "$0")/../.."
tag=${1:-localhost/prolepsis}
extras=${EXTRAS:-engine,gpu,postgres,queue,otel,age,flags}
context=build/image
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case "${DEVICE:-cpu}" in
  cpu) index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu} ;;
  cuda) index=${TORCH_INDEX:-https://pypi.org/simple} ;;
  *) echo "DEVICE is '$DEVICE'; allowed: cpu, cuda" >&2; exit 2 ;;
esac
tools="docker podman buildah"
[ "${BASE:-}" != debian ] || tools=buildah  # in whose storage that base is
builder=${BUILDER:-$(for tool in $tools; do if command -v "$tool" >/dev/null; then echo "$tool build"; break; fi; done)}
[ -n "$builder" ] || { echo "nothing that builds an image is installed; allowed: $tools" >&2; exit 2; }

rm -rf "$context"
mkdir -p "$context/wheels"
[ -z "${WHEELS:-}" ] || cp "$WHEELS"/*.whl "$context/wheels"
collect() { "$python" -m pip wheel --quiet -c constraints.txt --find-links "$context/wheels" --wheel-dir "$context/wheels" "$@"; }
# `own DISTRIBUTION FOLDER` builds a wheel of this checkout that WHEELS has not.
own() { ls "$context/wheels/$1"-*.whl >/dev/null 2>&1 || collect --no-deps "./$2"; }
own prolepsis .
for folder in kernels heads/*; do
  [ ! -f "$folder/pyproject.toml" ] || own "$(sed -n 's/^name = "\(.*\)"/\1/p' "$folder/pyproject.toml" | tr .- __)" "$folder"
done
case ",$extras," in  # torch comes first and alone, so that no other package decides which build of it is taken
  *,engine,* | *,gpu,* | *,train,*) collect --no-deps --no-index torch 2>/dev/null || collect --no-deps --index-url "$index" torch ;;
esac
collect "$(echo "$context"/wheels/prolepsis-*.whl)[$extras]" pip

base=${BASE:-docker.io/library/python:$version-slim-bookworm}
build=${BUILD_BASE:-docker.io/library/python:$version-bookworm}
if [ "$base" = debian ]; then
  case "$version" in
    3.11) suite=bookworm ;;
    3.13) suite=trixie ;;
    *) echo "BASE=debian needs PYTHON to be 3.11 or 3.13, as Debian has; it is $version" >&2; exit 2 ;;
  esac
  set --
  for part in doc info locale man; do set -- "$@" --dpkgopt="path-exclude=/usr/share/$part/*"; done
  for name in base build; do  # usr-is-merged in place of usrmerge, which brings Perl
    packages=ca-certificates,libstdc++6,python3,usr-is-merged
    [ "$name" = base ] || packages=$packages,binutils
    mmdebstrap --quiet --variant=essential --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --include="$packages" "$@" \
      "$suite" "$context/$name.tar" >/dev/null
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$context/$name.tar" / >/dev/null
    buildah commit --quiet --rm "$container" "localhost/prolepsis-$name:$suite" >/dev/null
    rm "$context/$name.tar"
  done
  base=localhost/prolepsis-base:$suite
  build=localhost/prolepsis-build:$suite
fi
# shellcheck disable=SC2086  # BUILDER is a command with its options
$builder -f deploy/container/Containerfile --build-arg BASE="$base" --build-arg BUILD_BASE="$build" --build-arg EXTRAS="$extras" -t "$tag" "$context"
