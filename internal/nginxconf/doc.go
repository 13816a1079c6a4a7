// Package nginxconf translates what an NGINX configuration limits and proxies
// into this proxy's own: limit_req, limit_conn, proxy_pass, and what belongs to
// them. What has no counterpart is noted, directive by directive, and nothing is
// left out in silence.
package nginxconf
