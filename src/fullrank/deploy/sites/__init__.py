"""Federations whose sites are elsewhere, over whatever carries messages to them.

A server asks each site what it has (`federation`), and sends it jobs over a channel (`channel`, `engine`). A site does
them with its own data and keeps its clients' states (`host`, `states`), if the file `site.toml` allows it (`settings`).
"""

from fullrank.deploy.sites.channel import Channel, Trouble
from fullrank.deploy.sites.host import Host
from fullrank.deploy.sites.message import Message
from fullrank.deploy.sites.samples import SiteData
from fullrank.deploy.sites.serve import serve
from fullrank.deploy.sites.settings import SiteSettings

__all__ = ["Channel", "Host", "Message", "SiteData", "SiteSettings", "Trouble", "serve"]
