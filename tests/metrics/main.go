// Scrapes pages of metrics as Prometheus does, and reads them with Prometheus' own parsers: the server's, in both
// forms that it asks for, and promtool's, with what promtool says of the names.
//
//	metrics TOKEN-FILE FOLDER URL...
//
// prints a line of JSON for each page, keeps the pages in the folder, and fails where one cannot be read.
package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

// What Prometheus says it takes, when it prefers the one form and when it knows only the other.
var forms = []string{
	"application/openmetrics-text;version=1.0.0;q=0.9,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
	"text/plain;version=0.0.4;q=1,*/*;q=0.1",
}

type told struct {
	URL      string   `json:"url"`
	Form     string   `json:"form"`
	Families int      `json:"families"`
	Samples  int      `json:"samples"`
	Names    []string `json:"names"`
	Lint     []string `json:"lint"`
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "metrics TOKEN-FILE FOLDER URL...")
		os.Exit(2)
	}
	token, err := os.ReadFile(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	failed := false
	for number, url := range os.Args[3:] {
		for _, accept := range forms {
			file := filepath.Join(os.Args[2], fmt.Sprintf("%d", number))
			page, err := scrape(url, accept, strings.TrimSpace(string(token)), file)
			if err != nil {
				fmt.Fprintf(os.Stderr, "%s (%s): %v\n", url, accept, err)
				failed = true
				continue
			}
			line, _ := json.Marshal(page)
			fmt.Println(string(line))
		}
	}
	if failed {
		os.Exit(1)
	}
}

func scrape(url, accept, token, file string) (*told, error) {
	// Certificates of single components are made by themselves: a scraper is told to take them.
	client := &http.Client{
		Timeout:   20 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	request.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", "20")
	if strings.HasPrefix(url, "https:") {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", response.Status, body)
	}
	kind := response.Header.Get("Content-Type")
	media, _, err := mime.ParseMediaType(kind)
	if err != nil {
		return nil, fmt.Errorf("content type %q: %w", kind, err)
	}
	if wanted, _, _ := strings.Cut(accept, ";"); media != wanted {
		return nil, fmt.Errorf("it is %q, not %s", kind, wanted)
	}
	_, suffix, _ := strings.Cut(media, "/")
	if err := os.WriteFile(file+"."+suffix, body, 0o600); err != nil {
		return nil, err
	}
	page := &told{URL: url, Form: media}
	if err := parse(body, kind, page); err != nil {
		return nil, err
	}
	if media == "text/plain" {
		if err := lint(body, page); err != nil {
			return nil, err
		}
	}
	return page, nil
}

// By the parser of Prometheus' server.
func parse(body []byte, kind string, page *told) error {
	parser, err := textparse.New(body, kind, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return err
	}
	helped, typed, seen := map[string]bool{}, map[string]model.MetricType{}, map[string]bool{}
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		switch entry {
		case textparse.EntryHelp:
			name, _ := parser.Help()
			if helped[string(name)] {
				return fmt.Errorf("%s has two helps", name)
			}
			helped[string(name)] = true
		case textparse.EntryType:
			name, kind := parser.Type()
			if _, twice := typed[string(name)]; twice {
				return fmt.Errorf("%s stands on the page twice", name)
			}
			// OpenMetrics knows no counter without "_total", and some of cAdvisor's counts, and two of upstream's first
			// years (authentication_attempts, authenticated_user_requests), have none.
			known := strings.HasPrefix(string(name), "container_") || strings.HasPrefix(string(name), "authenticat")
			if kind == model.MetricTypeUnknown && !known {
				return fmt.Errorf("nobody knows what %s is", name)
			}
			typed[string(name)] = kind
		case textparse.EntrySeries:
			var set labels.Labels
			parser.Labels(&set)
			if seen[set.String()] {
				return fmt.Errorf("%s is told twice", set)
			}
			seen[set.String()] = true
			if !belongs(set.Get(labels.MetricName), typed) {
				return fmt.Errorf("%s is of no family that was named before", set)
			}
			page.Samples++
		default:
			return fmt.Errorf("an entry of kind %v", entry)
		}
	}
	for name := range typed {
		if !helped[name] {
			return fmt.Errorf("%s has no help", name)
		}
		page.Names = append(page.Names, name)
	}
	sort.Strings(page.Names)
	page.Families = len(typed)
	if page.Samples == 0 {
		return errors.New("nothing is told")
	}
	return nil
}

func belongs(name string, typed map[string]model.MetricType) bool {
	if _, known := typed[name]; known {
		return true
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count", "_total", "_created", "_info"} {
		if family, cut := strings.CutSuffix(name, suffix); cut {
			if _, known := typed[family]; known {
				return true
			}
		}
	}
	return false
}

// By the parser of promtool, with what it says of names and helps; and what no parser looks at: buckets that
// shrink, counts that are negative.
func lint(body []byte, page *told) error {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return err
	}
	for name, family := range families {
		for _, metric := range family.GetMetric() {
			if counter := metric.GetCounter(); counter != nil && counter.GetValue() < 0 {
				return fmt.Errorf("%s is a counter below zero", name)
			}
			histogram := metric.GetHistogram()
			if histogram == nil {
				continue
			}
			var below uint64
			for _, bucket := range histogram.GetBucket() {
				if bucket.GetCumulativeCount() < below {
					return fmt.Errorf("%s has a bucket with less than the one before", name)
				}
				below = bucket.GetCumulativeCount()
			}
			if below != histogram.GetSampleCount() {
				return fmt.Errorf("%s: the last bucket has %d, all are %d", name, below, histogram.GetSampleCount())
			}
		}
	}
	problems, err := promlint.New(bytes.NewReader(body)).Lint()
	if err != nil {
		return err
	}
	for _, problem := range problems {
		page.Lint = append(page.Lint, problem.Metric+": "+problem.Text)
	}
	sort.Strings(page.Lint)
	return nil
}
