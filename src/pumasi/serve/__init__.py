"""A trained model behind a page and a JSON API.

`preprocessing` is for training scripts, and says how inputs become numbers; `running` is what `pumasi serve` starts.
Needs nothing but the standard library, numpy, the framework of the model, and nothing of ours but `errors`: it runs in
any image that has the framework.
"""
