// Fetch gets URLs as any program that knows the proxy variables does, and prints their bodies; tcp://HOST:PORT only
// connects, and dns://SERVER/NAME asks a server for addresses. The scripts of network put it into pods: what the
// workspace's image has for this needs a libc that it has not.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// patience is how long a try may take; what a fence drops is never answered.
const patience = 5 * time.Second

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: fetch CA-FILE URL...")
		os.Exit(2)
	}
	for _, text := range os.Args[2:] {
		if err := try(os.Args[1], text); err != nil {
			fmt.Fprintln(os.Stderr, "fetch:", err)
			os.Exit(1)
		}
	}
}

func try(caFile, text string) error {
	target, err := url.Parse(text)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch target.Scheme {
	case "tcp":
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", target.Host)
		if err != nil {
			return err
		}
		return conn.Close()
	case "dns":
		return ask(ctx, target.Hostname(), strings.TrimPrefix(target.Path, "/"))
	}
	return fetch(caFile, text)
}

func ask(ctx context.Context, server, name string) error {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(server, "53"))
	}}
	found, err := resolver.LookupHost(ctx, name+".")
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return errors.New("no address")
	}
	fmt.Println(strings.Join(found, " "))
	return nil
}

func fetch(caFile, text string) error {
	roots := x509.NewCertPool()
	if authority, err := os.ReadFile(caFile); err == nil { // plain HTTP needs none
		roots.AppendCertsFromPEM(authority)
	}
	client := &http.Client{
		Timeout:   2 * patience,
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: roots}},
	}
	answer, err := client.Get(text)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", text, answer.Status, body)
	}
	_, err = os.Stdout.Write(body)
	return err
}
