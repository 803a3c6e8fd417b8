package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"time"
)

// certify makes an authority, and a certificate of it for this machine alone.
func certify() (certificate tls.Certificate, authority []byte, err error) {
	signer, root, err := issue(nil, nil)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	parent, err := x509.ParseCertificate(root)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	key, leaf, err := issue(parent, signer)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root})
	return tls.Certificate{Certificate: [][]byte{leaf}, PrivateKey: key}, authority, nil
}

// issue makes a key and its certificate: of an authority, or signed by one.
func issue(parent *x509.Certificate, signer *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "benchmark"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), BasicConstraintsValid: true,
	}
	if parent == nil {
		template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
		template.Subject.CommonName = "benchmark authority"
		parent, signer = template, key
	} else {
		template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		template.IPAddresses, template.DNSNames = []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"}
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	return key, certificate, err
}

// writeKubeconfig writes the file in one go: who waits for it finds it whole.
func writeKubeconfig(path, address, token string, authority []byte) error {
	named := func(field string, what map[string]any) []any {
		return []any{map[string]any{"name": "bench", field: what}}
	}
	content, err := json.MarshalIndent(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "bench",
		"clusters": named("cluster", map[string]any{"server": "https://" + address, "certificate-authority-data": authority}),
		"users":    named("user", map[string]any{"token": token}),
		"contexts": named("context", map[string]any{"cluster": "bench", "user": "bench"}),
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".part", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}
