"""Images to arrays: folders of JPEG files, read, decoded, cropped and resized in threads ahead of training.

    found = find_images("imagenet")                            # train/ and val/ with a folder a class, or one folder divided
    samples = ImageSamples(found.train, RandomView(size=224), seed=1)
    for inputs, labels in samples.batches(epoch, orders):      # (n, 224, 224, 3) float32, and class numbers

    folder.py    which files there are, and of which class
    codec.py     simplejpeg and OpenCV: bytes to pixels, pixels to another size
    views.py     what a network sees of an image: a random part while it trains, the middle while it is tested
    samples.py   batches, made in threads ahead of whoever takes them
    make.py      synthetic JPEG files
"""

from farandole.data.images.folder import ImageFiles, ImageSet, find_images
from farandole.data.images.make import make_images
from farandole.data.images.samples import ImageSamples
from farandole.data.images.views import MiddleView, RandomView

__all__ = ["ImageFiles", "ImageSamples", "ImageSet", "MiddleView", "RandomView", "find_images", "make_images"]
