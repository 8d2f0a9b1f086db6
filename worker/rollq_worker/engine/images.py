"""The images of a request: what SGLang takes beside the ids of a prompt.

SGLang wants one placeholder an image and makes as many of it as its own image processor says. A prompt with all of them
is never answered (0.5.23). Its count of prompt tokens is that of the whole prompt, so a processor that counts otherwise
than ours is noticed.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array

from rollq_worker.protocols import PromptImages


def collapsed(ids: array[int], token: int) -> array[int]:
    """The ids with one `token` in place of each run of it."""
    found = array("I")
    at = 0
    while at < len(ids):
        try:
            start = ids.index(token, at)
        except ValueError:
            break
        found += ids[at : start + 1]
        at = start + 1
        while at < len(ids) and ids[at] == token:
            at += 1
    return found + ids[at:]


def with_images(body: bytes, images: PromptImages) -> bytes:
    """The body of a request that carries these images."""
    urls = b'","'.join(image.data_url.encode() for image in images.images)  # they need no escapes
    return b'{"image_data":["%b"],%b' % (urls, body[1:])
