package autotls

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

// A domain whose certificate could not be obtained is tried again after
// firstRetry, then after twice as long each time, up to lastRetry. CertMagic
// itself waits a minute at first, which is long for a CA that is just starting.
// With Let's Encrypt it asks the test environment first when it tries again, so
// that its limits on failures are not reached.
const (
	firstRetry = 2 * time.Second
	lastRetry  = time.Hour
)

// challengeProtocol is the ALPN name of TLS-ALPN-01 (RFC 8737, section 6.2).
const challengeProtocol = "acme-tls/1"

// An issuance obtains certificates for its domains and renews them.
type issuance struct {
	log       *slog.Logger
	domains   []string
	cache     *certmagic.Cache
	config    *certmagic.Config
	issuer    *certmagic.ACMEIssuer
	challenge *tls.Config // for the CA's handshakes
}

func newIssuance(c config.TLS, log *slog.Logger) (*issuance, error) {
	a := &issuance{log: log, domains: c.ACME.Domains}
	var roots *x509.CertPool
	if c.ACME.CARoot != "" {
		data, err := readFile(c.ACME.CARoot)
		if err != nil {
			return nil, fmt.Errorf("ca_root: %w", err)
		}
		certs, err := config.ParseRoots(data)
		if err != nil {
			return nil, fmt.Errorf("ca_root %s: %w", c.ACME.CARoot, err)
		}
		roots = x509.NewCertPool()
		for _, cert := range certs {
			roots.AddCert(cert)
		}
	}
	quiet := zap.New(debugCore{log: log})
	a.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return a.config, nil },
		Logger:           quiet,
	})
	a.config = certmagic.New(a.cache, certmagic.Config{
		Storage:           &certmagic.FileStorage{Path: c.ACME.Storage},
		DefaultServerName: a.domains[0],
		// With this, and not without, it waits for OCSP responders no longer than
		// half a minute; a certificate is not shown before.
		OCSP:           certmagic.OCSPConfig{HTTPProxy: http.ProxyFromEnvironment},
		OnEvent:        a.tell,
		ShouldEmitFunc: func(event string) bool { return event != "tls_get_certificate" },
		Logger:         quiet,
	})
	a.issuer = certmagic.NewACMEIssuer(a.config, certmagic.ACMEIssuer{
		CA: cmp.Or(c.ACME.CA, certmagic.LetsEncryptProductionCA),
		// Of an empty address it would ask somebody at the terminal; blanks it
		// takes away, and makes an account without one.
		Email:        cmp.Or(c.ACME.Email, " "),
		Agreed:       true, // without agree_tos the configuration does not load
		TrustedRoots: roots,
		Logger:       quiet,
	})
	a.config.Issuers = []certmagic.Issuer{a.issuer}
	// No client certificate is asked for here: the CA has none.
	a.challenge = &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{challengeProtocol},
		SessionTicketsDisabled: true, GetCertificate: a.certificate,
	}
	return a, nil
}

// start obtains what is missing. Where there is no port, there is no challenge.
// CertMagic listens by itself on ports that it finds free, without any deadline;
// it finds none, as ours are taken.
func (a *issuance) start(ctx context.Context, running *sync.WaitGroup, host string, tlsPort, plainPort int) {
	a.issuer.ListenHost = host
	a.issuer.AltTLSALPNPort, a.issuer.DisableTLSALPNChallenge = tlsPort, tlsPort == 0
	a.issuer.AltHTTPPort, a.issuer.DisableHTTPChallenge = plainPort, plainPort == 0
	for _, name := range a.domains {
		running.Go(func() { a.obtain(ctx, name) })
	}
}

// obtain returns once the domain has a certificate that needs no renewal yet;
// CertMagic's maintenance renews it from then on. One in the storage folder is
// shown meanwhile, even if it has expired and the CA is down.
func (a *issuance) obtain(ctx context.Context, name string) {
	attempts := 0
	ctx = context.WithValue(ctx, certmagic.AttemptsCtxKey, &attempts)
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := a.manage(ctx, name)
		if err == nil || ctx.Err() != nil {
			return
		}
		if !a.has(name) { // else tell has done so
			a.log.Error("no certificate could be obtained; unless the error says otherwise, see that the name leads here and that the CA can reach the ports", "domain", name, "error", err, "again_in", wait.String())
		}
		attempts++
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (a *issuance) manage(ctx context.Context, name string) error {
	if !a.has(name) {
		return a.config.ManageSync(ctx, []string{name})
	}
	// It is there, from the storage folder, and its renewal has failed, of which
	// ManageSync would say that all is well.
	if err := a.config.RenewCertSync(ctx, name, false); err != nil {
		return err
	}
	return a.cache.RenewManagedCertificates(ctx) // which takes it from the folder
}

// tell logs what an operator must know. CertMagic's own words are for debugging.
func (a *issuance) tell(_ context.Context, event string, data map[string]any) error {
	renewal, _ := data["renewal"].(bool)
	switch {
	case event == "cert_obtained":
		a.log.Info("certificate obtained", "domain", data["identifier"], "renewal", renewal)
	case event == "cert_failed" && renewal:
		a.log.Error("the certificate could not be renewed; the one before is shown, and the next try comes by itself", "domain", data["identifier"], "remaining", fmt.Sprint(data["remaining"]), "error", data["error"])
	case event == "cert_ocsp_revoked":
		a.log.Error("the certificate was revoked by its CA; another is obtained", "domains", fmt.Sprint(data["subjects"]))
	}
	return nil
}

func (a *issuance) close() {
	a.cache.Stop()
	// A renewal may have been cut short.
	certmagic.CleanUpOwnLocks(context.Background(), zap.New(debugCore{log: a.log}))
}

func (a *issuance) manages(name string) bool { return slices.Contains(a.domains, name) }

func (a *issuance) has(name string) bool { return len(a.cache.AllMatchingCertificates(name)) > 0 }

// expiries adds when the certificates end; of two, while one replaces the other,
// the later.
func (a *issuance) expiries(ends map[string]time.Time) {
	for _, name := range a.domains {
		for _, c := range a.cache.AllMatchingCertificates(name) {
			if c.Leaf.NotAfter.After(ends[name]) {
				ends[name] = c.Leaf.NotAfter
			}
		}
	}
}

func (a *issuance) waiting() []string {
	var names []string
	for _, name := range a.domains {
		if !a.has(name) {
			names = append(names, name)
		}
	}
	return names
}

// certificate is for a handshake: the CA's, whose certificate proves that the
// name leads here, or a client's. Without one, and for names that are not ours,
// it leaves the choice to tls.Config.Certificates; where these are none, that is
// the alert unrecognized_name. CertMagic is not asked for names of others, as it
// would look for them in the storage folder.
func (a *issuance) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := strings.ToLower(hello.ServerName)
	if name != "" && !a.manages(name) || isChallenge(hello) && name == "" {
		return nil, nil
	}
	cert, err := a.config.GetCertificate(hello)
	if err != nil {
		return nil, nil
	}
	return cert, nil
}

func isChallenge(hello *tls.ClientHelloInfo) bool {
	return len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == challengeProtocol
}

// answers reports whether it has answered what a CA asks for HTTP-01.
func (a *issuance) answers(w http.ResponseWriter, r *http.Request, name string) bool {
	return r.Method == http.MethodGet && r.URL.RawQuery == "" && a.manages(name) && a.issuer.HandleHTTPChallenge(w, r)
}
