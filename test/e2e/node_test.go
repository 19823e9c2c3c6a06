package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// hostsFile holds names for tests; the cluster's DNS reads it every second.
	hostsFile = "/var/lib/execsession-cluster/config/hosts"
	// recordDir has a file for each bridge, with the process that made it, so that what a killed test left is known.
	recordDir = "/run/execsession-e2e"
)

// bridge is a device of the node that carries one address and nothing else.
type bridge struct {
	name    string
	address netip.Addr
}

func (b *bridge) make() error {
	if err := os.MkdirAll(recordDir, 0o700); err != nil {
		return err
	}
	// Recorded before it exists: a record too many does no harm.
	if err := b.record(os.Getpid()); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "add", b.name, "type", "bridge"},
		{"address", "add", b.address.String() + "/32", "dev", b.name},
		{"link", "set", b.name, "up"},
	} {
		if err := ip(context.Background(), args...); err != nil {
			return errors.Join(err, b.remove())
		}
	}
	return nil
}

func (b *bridge) record(pid int) error {
	return os.WriteFile(filepath.Join(recordDir, b.name), []byte(strconv.Itoa(pid)), 0o600)
}

// remove removes the bridge, the names that were given on its account, and the record of both.
func (b *bridge) remove() error {
	err := editHosts(func(lines []string) []string {
		var kept []string
		for _, line := range lines {
			if !strings.HasSuffix(line, "# "+b.name) {
				kept = append(kept, line)
			}
		}
		return kept
	})
	if _, missing := net.InterfaceByName(b.name); missing == nil {
		err = errors.Join(err, ip(context.Background(), "link", "delete", b.name))
	}
	if err != nil {
		return err
	}
	return os.Remove(filepath.Join(recordDir, b.name))
}

// removeLeftovers removes what tests made that were killed.
func removeLeftovers(ctx context.Context) error {
	records, err := os.ReadDir(recordDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, record := range records {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		text, readErr := os.ReadFile(filepath.Join(recordDir, record.Name()))
		pid, parseErr := strconv.Atoi(string(text))
		if readErr != nil || parseErr != nil || record.Name() == lockName || syscall.Kill(pid, 0) == nil {
			continue
		}
		err = errors.Join(err, (&bridge{name: record.Name()}).remove())
	}
	return err
}

func ip(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// addNames adds lines for a bridge and returns the address of the cluster's DNS server, which runs on the node.
func addNames(bridge string, lines []string) (dns string, err error) {
	err = editHosts(func(all []string) []string {
		for _, line := range all {
			if fields := strings.Fields(line); len(fields) == 2 && fields[1] == "node.execsession.test" {
				dns = fields[0]
			}
		}
		for _, line := range lines {
			all = append(all, line+" # "+bridge)
		}
		return all
	})
	if err == nil && dns == "" {
		err = fmt.Errorf("%s does not name the node", hostsFile)
	}
	return dns, err
}

const lockName = "lock"

// hostsMu is for this process what the lock file is between processes.
var hostsMu sync.Mutex

// editHosts changes the lines of the hosts file, one process at a time.
func editHosts(change func(lines []string) []string) error {
	hostsMu.Lock()
	defer hostsMu.Unlock()
	lock, err := os.OpenFile(filepath.Join(recordDir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // which unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	text, err := os.ReadFile(hostsFile)
	if err != nil {
		return err
	}
	lines := change(strings.Split(strings.TrimRight(string(text), "\n"), "\n"))
	changed := []byte(strings.Join(lines, "\n") + "\n")
	// Renamed into place: the DNS server must not read half of it.
	temp := hostsFile + ".new"
	if err := os.WriteFile(temp, changed, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, hostsFile)
}

// serve answers HTTP and HTTPS at an address for every name of a zone.
func serve(address netip.Addr, zone string) (authority []byte, stop func(), err error) {
	certificate, authority, err := certify("*."+zone, address)
	if err != nil {
		return nil, nil, err
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "hello to "+r.Host+"\n")
		}),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: time.Minute,
	}
	var serving sync.WaitGroup
	stop = func() {
		_ = server.Close()
		serving.Wait()
	}
	for port, serveOn := range map[uint16]func(net.Listener) error{
		80: server.Serve, 443: func(l net.Listener) error { return server.ServeTLS(l, "", "") },
	} {
		listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, port)))
		if err != nil {
			stop()
			return nil, nil, err
		}
		serving.Go(func() { _ = serveOn(listener) }) // ends with stop
	}
	return authority, stop, nil
}

// certify makes a certificate that is its own authority.
func certify(name string, address netip.Addr) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{address.AsSlice()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func hexByte(text string) byte {
	decoded, err := hex.DecodeString(text)
	if err != nil || len(decoded) != 1 {
		return 0
	}
	return decoded[0]
}
