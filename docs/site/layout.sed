# The reference has no pages of its own; its first entry leads back to those of the site.
s|<tab type="mainpage" .*|<tab type="user" url="../index.html" title="Pages"/>\n    <tab type="mainpage" visible="yes" title="Reference"/>|
s|<tab type="pages" .*|<tab type="pages" visible="no" title="" intro=""/>|
s|<tab type="globals" visible="yes"|<tab type="globals" visible="no"|
s|<tab type="hierarchy" visible="yes"|<tab type="hierarchy" visible="no"|
